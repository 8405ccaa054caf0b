"""Products with more than 2**31 elements, on a GPU."""


def check_beyond_int32(case, algo, allow):
    """Small integers, every element checked exactly against torch's product in float32, a slice of the output at a time."""
    import torch
    generator = torch.Generator("cuda").manual_seed(7)

    def integers(shape):
        x = torch.empty(shape, dtype=getattr(torch, case.dtype), device="cuda")
        for part in x.view(-1).split(1 << 26):
            part.copy_(torch.randint(-1, 2, part.shape, generator=generator, device="cuda", dtype=torch.int8))
        return x

    places = case.inputs()
    a, b = integers(places["a"].shape), integers(places["b"].shape)
    y = torch.full(case.outputs()["y"].shape, 99, dtype=getattr(torch, case.y_dtype), device="cuda")
    assert max(a.numel(), y.numel()) > 2 ** 31
    case.call({"a": a, "b": b, "bias": None, "c": None}, y, algo=algo, allow=allow)
    step = max(1, (1 << 26) // y[0].numel())
    for first in range(0, len(a), step):
        want = torch.matmul(a[first:first + step].float(), (b if b.ndim == 2 else b[0]).float())
        assert torch.equal(y[first:first + step].float(), want), f"{case.id}, {algo}: wrong in rows {first} to {first + step}"
