"""Asynchronous training: workers compute at their own pace, and parameter servers hold the model."""
