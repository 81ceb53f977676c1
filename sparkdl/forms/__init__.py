"""Lighter forms of a registered network: made from it, measured beside it, and kept where they lose little.

Nothing is imported here: what makes them needs packages of the extra ``forms``.
"""
