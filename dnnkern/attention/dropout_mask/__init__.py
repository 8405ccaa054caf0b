"""The dropout mask of attention as an array."""
