"""Problems to measure, one module an operation."""
