"""Cases of attention's gradient: by the definition in float64, and how far rounding may lead from it."""
import math

import numpy as np

from . import ROUNDOFF, coherent, rounded, rounding_error
from ._cross_entropy import growth, in_mode
from ._sdpa import OPTIONAL, RAGGED, Sdpa


class Backward(Sdpa):
    """The gradients by q, k, v, and the bias."""
    op = "sdpa_bwd"

    def inputs(self):
        found = self.common()
        more = {"do": self.place("do", self.shapes["o"], self.dtype), "o": self.place("o", self.shapes["o"], self.dtype),
                "lse": self.place("lse", self.shapes["lse"], self.compute)}
        return {**more, **found}

    @property
    def with_dbias(self):
        return self.bias is not None and self.wanted

    def outputs(self):
        found = {"d" + name: self.place("d" + name, self.shapes[name], self.dtype) for name in ("q", "k", "v")}
        if self.with_dbias:
            found["dbias"] = self.place("dbias", self.bias, self.bias_dtype or self.dtype)
        if self.of_sink:
            found["dsink"] = self.place("dsink", (self.heads,), self.sink)
        return found

    def problem(self):
        from dnnkern.attention._calls import make_backward
        t = self.tensors()
        more = *RAGGED, "ragged_o", "ragged_q", "ragged_k", "ragged_v", "dropout_mask"
        given = tuple(t.get(name) for name in ("do", "q", "k", "v", "o", "lse", *OPTIONAL, "seed", "offset", *more))
        return self.with_more(make_backward(given, tuple(t[name] for name in self.outputs()), *self.options,
                                            with_dbias=self.with_dbias, with_dsink=self.of_sink, aliases=frozenset()))

    def call(self, arrays, out=None, **tail):
        from dnnkern import sdpa_bwd
        if self.modifier:
            return self.call_with_more(arrays, out, tail)
        more = {"bias_gradient": self.wanted} if self.bias is not None else {}
        if self.of_sink:
            more["sink_gradient"] = True
        return sdpa_bwd(*(arrays[name] for name in ("do", "q", "k", "v", "o", "lse")), **more, **self.keywords(arrays, out, tail))

    def values(self, mode):
        found, places = self.common_values(), self.inputs()
        (o, _), (lse, _), *_ = self.forward(found)
        rng = np.random.default_rng(12)
        found["do"] = coherent(rounded(rng.standard_normal(o.shape) + 0.25, self.dtype), places["do"])
        found["o"], found["lse"] = coherent(rounded(o, self.dtype), places["o"]), coherent(rounded(lse, self.compute), places["lse"])
        return in_mode(found, mode)

    def gradients(self, values, tensor_cores=False):
        """{output: (gradient, bound of its error before it is rounded)}; `o` and `lse` as given."""
        images, share, unit = 1 if self.packed else self.batch, self.heads // max(self.kv_heads, 1), self.unit
        half = ROUNDOFF[self.dtype] if tensor_cores and self.dtype in ("float16", "bfloat16") else 0
        least = 2.0 ** -24 * (half > 0 and self.dtype == "float16")
        dq, dq_error = np.zeros((2, images, self.heads, self.rows, self.d))
        dk, dk_error = np.zeros((2, images, self.kv_heads, self.keys, self.d))
        dv, dv_error = np.zeros((2, images, self.kv_heads, self.keys, self.e))
        full = (self.batch, self.heads, self.rows, self.keys)
        dbias, dbias_error, dbias_size = np.zeros((3, *full)) if self.with_dbias else np.zeros((3, 1, 1, 1, 1))
        dsink, dsink_error = np.zeros((2, self.heads))
        do_all, o_all = (self.apart(name, values[name], values) for name in ("do", "o"))
        lse_all = self.of_rows_apart(values["lse"])
        for b, image, rows, keys in self.sequences():
            q, k, v = self.operands(values, b, image, rows, keys)
            do, o, lse = do_all[image][:, rows], o_all[image][:, rows], lse_all[image][:, rows, None]
            x, derivative, error = self.scores(q, k, values, b)
            seen = np.isfinite(lse) & np.isfinite(x)
            p = np.where(seen, np.exp(np.where(seen, x - np.where(seen, lse, 0), 0)), 0)
            kept = self.kept(x, b, values)
            dp, delta = kept * (do @ v.transpose(0, 2, 1)), (do * o).sum(2, keepdims=True)
            of_e = unit * (growth(self.e) + 6)
            dp_error = of_e * (kept * (np.abs(do) @ np.abs(v).transpose(0, 2, 1)) + (np.abs(do) * np.abs(o)).sum(2, keepdims=True))
            p_error = error + unit * (12 + 4 * np.where(seen, np.abs(x) + np.abs(np.where(seen, lse, 0)), 0))
            ds = p * (dp - delta)
            ds_error = p * ((p_error + 6 * unit) * (np.abs(dp) + np.abs(delta)) + dp_error)
            slant = ds * derivative
            slant_error = ds_error * np.abs(derivative) + (6 * unit + half) * np.abs(slant) + least
            if self.softcap or self.modifier:
                slant_error = slant_error + np.abs(ds * self.factor) * (2 * error / (self.softcap or 1) + 16 * unit)

            def product(a, a_error, m):
                return a @ m, a_error @ np.abs(m) + unit * (growth(a.shape[2]) + growth(share) + 8) * (np.abs(a) @ np.abs(m))

            def grouped(a):
                return a.reshape(self.kv_heads, share, *a.shape[1:]).sum(1)

            dq[image, :, rows], dq_error[image, :, rows] = product(slant, slant_error, k)
            turned, turned_error = slant.transpose(0, 2, 1), slant_error.transpose(0, 2, 1)
            dk[image, :, keys], dk_error[image, :, keys] = map(grouped, product(turned, turned_error, q))
            used = p * kept
            used_error = used * (p_error + half) + least
            dv[image, :, keys], dv_error[image, :, keys] = map(grouped, product(used.transpose(0, 2, 1), used_error.transpose(0, 2, 1), do))
            if self.of_sink:
                own = values["sink"][:, None]
                exist, level = np.isfinite(lse[..., 0]), np.where(np.isfinite(lse[..., 0]), lse[..., 0], 0)
                weight = np.where(exist, np.exp(own - level), 0)
                dsink -= (weight * delta[..., 0]).sum(1)
                size = np.abs(weight * delta[..., 0]) * (24 + growth(self.rows * self.batch) + 4 * (np.abs(own) + np.abs(level)))
                dsink_error += (unit * size + of_e * weight * (np.abs(do) * np.abs(o)).sum(2)).sum(1)
            if self.with_dbias:
                at = b, slice(None), slice(0, x.shape[1]), slice(0, x.shape[2])
                dbias[at], dbias_error[at], dbias_size[at] = ds, ds_error, np.abs(ds)
        found = {"dq": (dq, dq_error), "dk": (dk, dk_error), "dv": (dv, dv_error)}
        found = {name: tuple(self.together(name, y) for y in pair) for name, pair in found.items()}
        if self.with_dbias:
            shape = (1,) * (4 - len(self.bias)) + self.bias
            over = tuple(a for a in range(4) if shape[a] == 1)
            total, error, size = (y.sum(over, keepdims=True).reshape(self.bias) for y in (dbias, dbias_error, dbias_size))
            found["dbias"] = total, error + unit * (growth(math.prod(full) // max(math.prod(self.bias), 1)) + 4) * size
        if self.of_sink:
            found["dsink"] = dsink, dsink_error
        return found

    def reference(self, values, tensor_cores=False):
        found, places = self.gradients(values, tensor_cores), self.outputs()
        return ({name: y for name, (y, _) in found.items()},
                {name: error + rounding_error(y, places[name].dtype) for name, (y, error) in found.items()})

    @property
    def gradient(self):
        return self._differences if 0 < self.rows * self.keys * self.heads * self.batch <= 600 else None

    def _differences(self, values):
        """d(sum of o * do) along a direction of each operand, by differences in float64."""
        (o, _), (lse, _), *_ = self.forward(values)
        found, rng, step = self.gradients({**values, "o": o, "lse": lse}), np.random.default_rng(3), 1e-6
        for name, (analytic, _) in found.items():
            of = name[1:]
            v = rng.uniform(-1, 1, values[of].shape)
            above, below = (self.forward({**values, of: values[of] + s * v})[0][0] for s in (step, -step))
            numeric = ((above - below) * values["do"]).sum() / (2 * step)
            yield np.asarray((analytic * v).sum()), np.asarray(numeric), np.asarray(1e-6 * (1 + np.abs(analytic).sum()))
