"""A score modifier of the caller's: a program (`device.program`) of the scaled product of a query and a key, whose result is the score.

    m, n           query i and key j of their sequence
    operands       broadcast to (batch, heads, rows, keys); indices of batch, head, query and key are operands like others
    forward        score = score_mod(x),  x = scale * q k'
    backward       of dS, the derivative by the score:  score_mod_bprop(dS, x), the derivative by x;  dS itself without such a program

Kernels have the operands of both programs, one after the other, for the bias, of which there is none then: `of_head` moves them to a head,
and where a bias has the index of its element, they have the query and the key.
"""
import functools

from ..engine.programs import (Steps, WithProgram, broadcast_strides, check_access, check_functions, members_argument, operand_names,
                               reaches_far)
from ..engine.constants import constants
from ..host.products import FP8

COST = constants("attention/score_mod")


@functools.cache
def joined(score_mod, score_mod_bprop):
    """The loads of both programs, as one program that has no steps; None without them."""
    if score_mod is None:
        return None
    loads = score_mod.loads + (score_mod_bprop.loads if score_mod_bprop is not None else ())
    return type(score_mod)(loads, result=0)


class WithScoreMod(WithProgram):
    """A problem with the fields `score_mod` and `extras`, of gradients `score_mod_bprop` as well; a mixin."""

    @functools.cached_property
    def program(self):
        """What the operands are of."""
        return joined(self.score_mod, getattr(self, "score_mod_bprop", None))

    @property
    def scores_shape(self):
        """What the operands broadcast to."""
        return self.batch, self.heads, self.rows, self.keys

    @functools.cached_property
    def extra_steps(self):
        """`Steps` of each operand."""
        strides = [broadcast_strides(t, self.scores_shape) for t in self.extras]
        return tuple(Steps(row, column, (batch, head)) for batch, head, row, column in strides)

    @property
    def wide(self):
        """Whether offsets in the operands need 64 bits."""
        return reaches_far(((*steps.batch, steps.row, steps.column) for steps in self.extra_steps), self.scores_shape)

    @functools.cached_property
    def programs(self):
        """(score_mod, score_mod_bprop) as kernels compute them, of fewer instructions; None where there is none."""
        if self.score_mod is None:
            return None, None
        from ..device.convert import element
        from ._exact_programs import exact
        ranges = tuple(self._range_of(steps) if access == "index" else None
                       for (_, access), steps in zip(self.program.operands, self.extra_steps))
        count, compute = len(self.score_mod.operands), element(self.dtype).compute
        return exact(self.score_mod, ranges[:count], compute), exact(getattr(self, "score_mod_bprop", None), ranges[count:], compute)

    @property
    def small_indices(self):
        """Of each operand (row, column), the strides of an index whose numbers are small; None of others."""
        from ..device.program_affine import SMALL
        return tuple((steps.row, steps.column) if access == "index" and max(map(abs, self._range_of(steps))) < SMALL else None
                     for (_, access), steps in zip(self.program.operands, self.extra_steps)) if self.program is not None else ()

    def _range_of(self, steps):
        """(least, most) of an index."""
        ends = [step * max(n - 1, 0) for step, n in zip((*steps.batch, steps.row, steps.column), self.scores_shape)]
        return sum(min(end, 0) for end in ends), sum(max(end, 0) for end in ends)

    @functools.cached_property
    def documents(self):
        """(`engine.document_blocks.Documents`, `Blocks`) of a mask by numbers of queries and of keys, the same for all heads, which leaves
        blocks out; None without."""
        if self.score_mod is None or not self.rows or not self.keys or getattr(self, "block_mask", None) is not None:
            return None
        from ..engine.document_blocks import Blocks, documents_of
        found = documents_of(self.programs[0])
        if found is None:
            return None
        batches = [self.extra_steps[k].batch for k in (found.rows, found.columns)]
        if any(of_head for _, of_head in batches):
            return None
        return found, Blocks(self.batch if any(of_image for of_image, _ in batches) else 1, self.rows, self.keys)

    @functools.cached_property
    def score_instructions(self):
        """Of a score, by the programs as kernels on tensor cores compute them."""
        if self.score_mod is None:
            return 0
        from ..device.program_levels import parts_of
        from ..engine.functions import OF_MODES
        parts = parts_of(*self.programs)
        found = COST.scale + (COST.tanh if parts is not None else 0)
        for program in self.programs if parts is None else parts:
            if program is not None:
                found += sum(getattr(COST, OF_MODES.get(step.function.mode, "light" if step.function.is_condition else "other"), COST.other)
                             + COST.rounding * (step.round_to not in (None, "int32")) for step in program.steps)
        return found + sum(getattr(COST, access, 0) for _, access in self.program.operands if isinstance(access, str))

    def _check_score_mod(self):
        """Raise unless the programs are some, with their operands, and nothing else makes scores of products."""
        bprop = getattr(self, "score_mod_bprop", None)
        object.__setattr__(self, "extras", tuple(self.extras))
        if self.score_mod is None:
            if self.extras or bprop is not None:
                raise ValueError(f"{self.op}: {'extras' if self.extras else 'score_mod_bprop'} without score_mod; expected both or neither")
            return
        check_functions(self.op, "score_mod", self.score_mod, 1)
        if bprop is not None:
            check_functions(self.op, "score_mod_bprop", bprop, 2)
        for name in ("bias", "alibi", "softcap"):
            if getattr(self, name):
                raise ValueError(f"{self.op}: {name} with score_mod; expected that alone: its program can compute the other")
        if self.packed:
            raise ValueError(f"{self.op}: packed sequences with score_mod; expected padded or ragged ones")
        if self.dtype in FP8:
            raise TypeError(f"{self.op}: score_mod with operands of {self.dtype}; expected 16 bits and more")
        self.check_program(self.op, self.scores_shape)
        for name, (_, access), steps in zip(operand_names(self.program), self.program.operands, self.extra_steps):
            check_access(self.op, name, access, steps)


def score_mod_argument(problem, blocks_at=None):
    """The kernel parameter with the operands of the programs; after them what finds the bits of `document_launches`, which begin with this
    byte of the workspace."""
    p = problem
    more = p.documents[1].members(blocks_at) if blocks_at is not None and p.documents else ()
    return members_argument(p.program, operand_names(p.program), p.extra_steps, p.wide, 2, more=more)


def document_launches(problem, begin):
    """The launch that finds which blocks of queries and keys a mask by documents leaves, if there is one."""
    p = problem
    if p.documents is None:
        return ()
    from ..engine.document_blocks import launch
    (documents, blocks), names = p.documents, operand_names(p.program)
    operands = [(p.program.operands[k][0], names[k], p.extra_steps[k]) for k in (documents.rows, documents.columns)]
    fill = None if documents.fill_operand is None else (None, names[documents.fill_operand])
    return (launch(documents, blocks, (*operands, fill), begin),)


def document_bytes(problem):
    """Bytes of those bits."""
    return problem.documents[1].bytes if problem.documents else 0
