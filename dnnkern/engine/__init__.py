"""What the kernels of several families share: main loops, loaders, stores, split-K sums, embedded operations, cost models."""
