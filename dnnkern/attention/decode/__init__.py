"""Attention of a few new queries to a cache of keys and values (decoding), contiguous or in pages."""
