"""Images sampled at other positions: resample, affine_grid, grid_sample."""
