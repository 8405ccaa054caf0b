"""Windows of an image as columns of a matrix (im2col), and their scatter-add back (col2im)."""
