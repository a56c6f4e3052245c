"""Adapters for other libraries: scikit-learn."""
