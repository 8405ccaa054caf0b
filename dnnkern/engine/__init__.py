"""What the kernels of several families share: main loops, loaders, stores, split-K sums, operations embedded in plans of others, cost models."""
