"""Recurrent networks by their definition in float64, and the error a correct result may have.

Errors are carried along step by step: each array has another of bounds, which products, slopes and roundings add to.
"""
import math

import numpy as np

from . import ROUNDOFF, rounding_error
from ._dropout import keep_bits

GATES, SLOTS = {"relu": 1, "tanh": 1, "lstm": 4, "gru": 3}, {"relu": 1, "tanh": 1, "lstm": 4, "gru": 4}
ACTIVATION = {"float32": 2.0 ** -19, "float64": 2.0 ** -47}  # error of sigmoid and tanh


class Bounded:
    """Numbers, and a bound of each one's error."""

    def __init__(self, value, error=0.0):
        self.value = np.asarray(value, np.float64)
        self.error = np.broadcast_to(np.asarray(error, np.float64), self.value.shape)

    def __getitem__(self, at):
        return Bounded(self.value[at], self.error[at])

    def __add__(self, other):
        return Bounded(self.value + other.value, self.error + other.error)

    def __mul__(self, other):
        error = np.abs(self.value) * other.error + np.abs(other.value) * self.error + self.error * other.error
        return Bounded(self.value * other.value, error)

    def one_minus(self):
        return Bounded(1 - self.value, self.error)

    def loose(self, unit):
        """With a few roundings of its own size."""
        return Bounded(self.value, self.error + unit * (np.abs(self.value) + self.error))

    def stored(self, dtype):
        """Rounded to a dtype."""
        return Bounded(self.value, self.error + rounding_error(np.abs(self.value) + self.error, dtype))


def joined(*parts):
    """Side by side."""
    return Bounded(np.concatenate([p.value for p in parts], -1), np.concatenate([p.error for p in parts], -1))


def sigmoid(a, unit):
    """1 / (1 + exp(-a)), whose slope is a quarter at most."""
    return Bounded(1 / (1 + np.exp(-a.value)), np.minimum(a.error / 4, 1) + unit)


def tanh(a, unit):
    """Its slope is 1 at most."""
    return Bounded(np.tanh(a.value), np.minimum(a.error, 2) + unit)


class Net:
    """The definition for one spec, in the order of `dnnkern.rnn`; `lengths` has a length for each sequence."""

    def __init__(self, spec, steps, lengths, seed, offset, training):
        self.spec, self.steps, self.lengths, self.samples = spec, steps, np.asarray(lengths, np.int64), len(lengths)
        self.seed, self.offset, self.training = seed, offset, training
        self.compute = "float64" if spec.dtype == "float64" else "float32"
        self.unit, self.act = ROUNDOFF[self.compute], ACTIVATION[self.compute]
        self.factors = 4 * ROUNDOFF["tf32"] if spec.math else 0.0  # error of a product of two numbers whose lower bits are cut off

    # ---- parts

    def matrix(self, weights, name, layer, direction):
        """A matrix in the buffer, or None."""
        full = f"{name}_l{layer}" + "_reverse" * direction
        for m in self.spec.matrices:
            if m.name == full:
                return weights[m.first:m.first + m.size].reshape(m.shape)
        return None

    def product(self, a, w):
        """a times the transpose of w, added up in any order."""
        size = np.abs(a.value) + a.error
        return Bounded(a.value @ w.T, a.error @ np.abs(w).T + (self.unit * (w.shape[1] + 4) + self.factors) * (size @ np.abs(w).T))

    def order(self, k, direction):
        """(sequences that have a step number k, which step it is)."""
        active = np.flatnonzero(self.lengths > k)
        return active, self.lengths[active] - 1 - k if direction else np.full(active.shape, k)

    def kept(self, layer):
        """1 where the result of a layer is not dropped; None without dropout."""
        s = self.spec
        if not (self.training and s.dropout and layer + 1 < s.num_layers):
            return None
        shape = self.steps, self.samples, s.output_size
        size = math.prod(shape)
        return keep_bits(size, s.dropout, self.seed, self.offset + layer)[:size].reshape(shape).astype(float)

    def dropped(self, x, layer):
        """A layer's result as the next one's input."""
        kept = self.kept(layer)
        if kept is None:
            return x
        return Bounded(x.value * kept / (1 - self.spec.dropout), x.error * kept / (1 - self.spec.dropout)).stored(self.spec.dtype)

    # ---- forward

    def forward(self, x, h0, c0, weights):
        """{y, hn, cn, reserve} as `Bounded`; the reserve as {(name, layer, direction): Bounded}."""
        s, saved = self.spec, {}
        hn = Bounded(np.zeros((s.num_layers * s.directions, self.samples, s.state_size)))
        cn = Bounded(np.zeros((s.num_layers * s.directions, self.samples, s.hidden_size)))
        here = Bounded(x)
        for layer in range(s.num_layers):
            results = []
            for direction in range(s.directions):
                of = layer * s.directions + direction
                y, h, c = self.one_direction(here, layer, direction, h0[of], c0[of], weights, saved)
                for whole, part in ((hn, h), (cn, c)):
                    whole.value[of] = part.value
                    whole.error = np.array(whole.error)
                    whole.error[of] = part.error
                results.append(y)
            y = Bounded(np.concatenate([r.value for r in results], -1), np.concatenate([r.error for r in results], -1))
            if layer + 1 < s.num_layers:
                saved["outputs", layer, 0] = y
                if (kept := self.kept(layer)) is not None:
                    saved["kept", layer, 0] = Bounded(kept)
                here = self.dropped(y, layer)
        return y, hn, cn, saved

    def one_direction(self, x, layer, direction, h0, c0, weights, saved):
        """(states, last states, last cell states) of one layer and direction; what is kept goes to `saved`."""
        s, H, S = self.spec, self.spec.hidden_size, self.spec.state_size
        w_ih, w_hh, b_ih, b_hh, w_hr = (self.matrix(weights, n, layer, direction) for n in ("w_ih", "w_hh", "b_ih", "b_hh", "w_hr"))
        empty = {"gates": SLOTS[s.cell] * H, "cells": H, "hidden": H, "projected": S}
        kept = {n: (np.zeros((self.steps, self.samples, size)), np.zeros((self.steps, self.samples, size))) for n, size in empty.items()}
        y, e = np.zeros((self.steps, self.samples, S)), np.zeros((self.steps, self.samples, S))
        h, eh, c, ec = h0.copy(), np.zeros(h0.shape), c0.copy(), np.zeros(c0.shape)
        for k in range(self.steps):
            active, t = self.order(k, direction)
            if not active.size:
                break
            line, state, cell = x[t, active], Bounded(h[active], eh[active]), Bounded(c[active], ec[active])
            many = GATES[s.cell]
            first = self.product(line, w_ih) if w_ih is not None else Bounded(np.tile(line.value, many), np.tile(line.error, many))
            first, second = first.loose(4 * self.unit), self.product(state, w_hh).loose(4 * self.unit)
            if b_ih is not None:
                first = (first + Bounded(np.broadcast_to(b_ih, first.value.shape), 4 * self.unit * np.abs(b_ih))).loose(4 * self.unit)
            if b_hh is not None:
                second = (second + Bounded(np.broadcast_to(b_hh, second.value.shape), 4 * self.unit * np.abs(b_hh))).loose(4 * self.unit)
            slots, after, out = self.cell(first, second, state, cell)
            if s.proj_size:
                hidden = out.stored(s.dtype)
                out = self.product(hidden, w_hr)
                for name, v in (("hidden", hidden), ("projected", out.stored(s.dtype))):
                    kept[name][0][t, active], kept[name][1][t, active] = v.value, v.error
            out = out.stored(s.dtype)
            h[active], eh[active], y[t, active], e[t, active] = out.value, out.error, out.value, out.error
            for name, v in (("gates", slots.stored(s.dtype)), *((("cells", after.stored(s.dtype)),) if s.cell == "lstm" else ())):
                kept[name][0][t, active], kept[name][1][t, active] = v.value, v.error
            if s.cell == "lstm":
                c[active], ec[active] = after.value, after.error
        for name, (value, error) in kept.items():
            if name == "gates" or name == "cells" and s.cell == "lstm" or name in ("hidden", "projected") and s.proj_size:
                saved[name, layer, direction] = Bounded(value, error)
        return Bounded(y, e), Bounded(h, eh), Bounded(c, ec).stored(s.dtype)

    def cell(self, first, second, state, cell):
        """(slots, cell state, h before a projection) of sums' two halves."""
        s, H, few = self.spec, self.spec.hidden_size, 8 * self.unit
        a, b = ([v[..., g * H:(g + 1) * H] for g in range(GATES[s.cell])] for v in (first, second))
        if s.cell in ("relu", "tanh"):
            total = (a[0] + b[0]).loose(few)
            out = Bounded(np.maximum(total.value, 0), total.error) if s.cell == "relu" else tanh(total, self.act)
            return out, out, out
        if s.cell == "gru":
            r, z = (sigmoid((a[g] + b[g]).loose(few), self.act) for g in (0, 1))
            n = tanh((a[2] + (r * b[2]).loose(few)).loose(few), self.act)
            out = ((z.one_minus() * n).loose(few) + (z * state).loose(few)).loose(few)
            return joined(r, z, n, b[2]), out, out
        i, f, g, o = ((tanh if k == 2 else sigmoid)((a[k] + b[k]).loose(few), self.act) for k in range(4))
        after = ((f * cell).loose(few) + (i * g).loose(few)).loose(few)
        if s.clip is not None:
            after = Bounded(np.clip(after.value, *s.clip), after.error)
        return joined(i, f, g, o), after, (o * tanh(after, self.act)).loose(few)

    # ---- backward

    def backward(self, dy, dhn, dcn, h0, c0, y, weights, saved):
        """(dx, dh0, dc0, the reserve afterwards); `saved` has what is given, without errors."""
        s, after = self.spec, dict(saved)
        states = s.num_layers * s.directions
        dh0, dc0 = (Bounded(np.zeros((states, self.samples, n))) for n in (s.state_size, s.hidden_size))
        given = Bounded(dy)
        for layer in reversed(range(s.num_layers)):
            own, parts = y if layer + 1 == s.num_layers else saved["outputs", layer, 0].value, []
            for direction in range(s.directions):
                of, part = layer * s.directions + direction, slice(direction * s.state_size, (direction + 1) * s.state_size)
                dx, dh, dc = self.one_back(given[..., part], own[..., part], layer, direction, dhn[of], dcn[of], h0[of], c0[of], weights,
                                           saved, after)
                for whole, got in ((dh0, dh), (dc0, dc)):
                    whole.value[of] = got.value
                    whole.error = np.array(whole.error)
                    whole.error[of] = got.error
                parts.append(dx)
            given = parts[0] if len(parts) == 1 else (parts[0] + parts[1]).loose(4 * self.unit)
            given = given.stored(s.dtype)
            if layer and (kept := saved.get(("kept", layer - 1, 0))) is not None:
                given = Bounded(given.value * kept.value / (1 - s.dropout), given.error * kept.value / (1 - s.dropout)).stored(s.dtype)
        return given, dh0.stored(s.dtype), dc0.stored(s.dtype), after

    def one_back(self, dy, y, layer, direction, dhn, dcn, h0, c0, weights, saved, after):
        """(gradient of the layer's input, of the first states, of the first cell states); gradients of gates go to `after`."""
        s, H, dtype, few = self.spec, self.spec.hidden_size, self.spec.dtype, 16 * self.unit
        w_ih, w_hh, w_hr = (self.matrix(weights, n, layer, direction) for n in ("w_ih", "w_hh", "w_hr"))
        slots, cells = saved["gates", layer, direction].value, saved.get(("cells", layer, direction))
        turned, error = np.zeros(slots.shape), np.zeros(slots.shape)
        dh, eh, dc, ec = dhn.copy(), np.zeros(dhn.shape), dcn.copy(), np.zeros(dcn.shape)
        through = np.zeros((2, self.steps, self.samples, s.state_size))
        for k in reversed(range(self.steps)):
            active, t = self.order(k, direction)
            if not active.size:
                continue
            before = t + 1 if direction else t - 1
            total = (dy[t, active] + Bounded(dh[active], eh[active])).loose(few)
            if s.proj_size:
                total = total.stored(dtype)
                through[0][t, active], through[1][t, active] = total.value, total.error
                total = self.product(total, w_hr.T)
            kept = [slots[t, active, g * H:(g + 1) * H] for g in range(SLOTS[s.cell])]
            first, old_h = k == 0, h0[active] if k == 0 else y[before, active]
            if s.cell == "lstm":
                old_c = c0[active] if first else cells.value[before, active]
                d, rest = self.lstm_back(kept, cells.value[t, active], old_c, total, Bounded(dc[active], ec[active]))
                dc[active], ec[active] = rest.value, rest.error
                rest = None
            elif s.cell == "gru":
                d, rest = self.gru_back(kept, old_h, total)
            else:
                slope = (kept[0] > 0) * 1.0 if s.cell == "relu" else 1 - kept[0] ** 2
                d, rest = [(total * Bounded(slope, few)).loose(few)], None
            d = [v.stored(dtype) for v in d]
            turned[t, active], error[t, active] = np.concatenate([v.value for v in d], -1), np.concatenate([v.error for v in d], -1)
            down = self.product(joined(*((d[0], d[1], d[3]) if s.cell == "gru" else d)), w_hh.T)
            down = (down + rest).loose(few) if rest is not None else down
            dh[active], eh[active] = down.value, down.error
        after["gates", layer, direction] = Bounded(turned, error)
        if s.proj_size:
            after["projected", layer, direction] = Bounded(*through)
        rows = Bounded(turned, error)[..., :GATES[s.cell] * H]
        if w_ih is not None:
            dx = self.product(rows, w_ih.T)
        else:
            parts = [rows[..., g * H:(g + 1) * H] for g in range(GATES[s.cell])]
            dx = parts[0]
            for part in parts[1:]:
                dx = (dx + part).loose(few)
        return dx, Bounded(dh, eh), Bounded(dc, ec)

    def lstm_back(self, kept, state, old, dh, dc):
        """Gradients before the gates' functions, and of the cell state before."""
        (i, f, g, o), few = kept, 16 * self.unit
        across = Bounded(np.tanh(state), self.act)
        d = (dc + (dh * Bounded(o) * Bounded(1 - across.value ** 2, 2 * self.act)).loose(few)).loose(few)
        if self.spec.clip is not None:
            inside = (state > self.spec.clip[0]) & (state < self.spec.clip[1])
            d = Bounded(d.value * inside, d.error * inside)
        slopes = (d * Bounded(g * i * (1 - i)), d * Bounded(old * f * (1 - f)), d * Bounded(i * (1 - g * g), few),
                  dh * across * Bounded(o * (1 - o)))
        return [v.loose(few) for v in slopes], (d * Bounded(f)).loose(few)

    def gru_back(self, kept, old, dh):
        """Gradients before the gates' functions and of the recurrent half of n, and of the state before without products."""
        (r, z, n, half), few = kept, 16 * self.unit
        d = (dh * Bounded((1 - z) * (1 - n * n), few)).loose(few)
        first = (d * Bounded(half * r * (1 - r))).loose(few)
        second = (dh * Bounded((old - n) * z * (1 - z), few * (np.abs(old) + np.abs(n)))).loose(few)
        return [first, second, d, (d * Bounded(r)).loose(few)], (dh * Bounded(z)).loose(few)

    # ---- weights

    def weights_gradient(self, x, h0, y, saved):
        """The gradient of all matrices, after `backward`."""
        s, H, found = self.spec, self.spec.hidden_size, []
        mask = np.arange(self.steps)[:, None] < self.lengths
        for layer in range(s.num_layers):
            own = y if layer + 1 == s.num_layers else saved["outputs", layer, 0].value
            given = Bounded(x if layer == 0 else saved["outputs", layer - 1, 0].value)
            if layer and ("kept", layer - 1, 0) in saved:
                kept = saved["kept", layer - 1, 0].value / (1 - s.dropout)
                given = Bounded(given.value * kept).stored(s.dtype)
            given = Bounded(given.value * mask[..., None], given.error * mask[..., None])
            for direction in range(s.directions):
                part = slice(direction * s.state_size, (direction + 1) * s.state_size)
                states = np.zeros((self.steps, self.samples, s.state_size))
                for k in range(self.steps):
                    active, t = self.order(k, direction)
                    before = t + 1 if direction else t - 1
                    states[t, active] = h0[layer * s.directions + direction][active] if k == 0 else own[before, active, part]
                gates = saved["gates", layer, direction].value
                rows = {"ih": gates[..., :GATES[s.cell] * H]}
                rows["hh"] = np.concatenate((gates[..., :2 * H], gates[..., 3 * H:]), -1) if s.cell == "gru" else rows["ih"]
                ones = Bounded(np.ones((self.steps, self.samples, 1)))
                factors = {"w_ih": (rows["ih"], given), "w_hh": (rows["hh"], Bounded(states)), "b_ih": (rows["ih"], ones),
                           "b_hh": (rows["hh"], ones)}
                if s.proj_size:
                    factors["w_hr"] = saved["projected", layer, direction].value, Bounded(saved["hidden", layer, direction].value)
                for name, (a, b) in factors.items():
                    if self.matrix(np.zeros(s.weight_size), name, layer, direction) is None:
                        continue
                    value, size = np.einsum("tnr,tnc->rc", a, b.value), np.einsum("tnr,tnc->rc", np.abs(a), np.abs(b.value))
                    rounding = self.unit * (self.steps * self.samples + 4) + self.factors
                    error = np.einsum("tnr,tnc->rc", np.abs(a), b.error) + rounding * size
                    found.append(Bounded(value.reshape(-1), error.reshape(-1)))
        return Bounded(np.concatenate([v.value for v in found]), np.concatenate([v.error for v in found])).stored(s.dtype)
