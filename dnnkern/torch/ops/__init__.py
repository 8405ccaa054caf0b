"""Overrides by kind of operator. Each file binds functions with the decorator `aten`; adding an operator is adding a function."""
