"""Adapters for other libraries: scikit-learn, Ray Data and sentence-transformers."""
