"""Benches: shapes, peers, roofs and reports. `python -m dnnkern bench` runs `bench.run`."""
