"""What the kernels of several families share: main loops, loaders, stores, split-K sums, and operations embedded in plans of others."""
