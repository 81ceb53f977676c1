"""Training without lockstep: workers that each go as fast as they can, and servers that hold the parameters."""
