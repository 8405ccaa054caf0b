"""What launches are made of: arrays of any framework, devices, compilation, plans, packed launches, memory."""
