"""Results of the benches, read, compared and drawn: what ``dnnkern report`` is made of."""
