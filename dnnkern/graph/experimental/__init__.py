"""PyTorch operators that call graphs (`ops`); importing it imports PyTorch."""
