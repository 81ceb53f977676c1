"""A DataFrame becomes a dataset: split, checked, ordered, cut into equal row groups, written whole."""
