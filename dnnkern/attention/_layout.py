"""Where the arrays of attention lie: batches, sequences one after the other, ragged ones, keys and values in pages."""
import functools

from ._checks import expect

LAYOUTS = ("BHSD", "BSHD", "THD")
OFFSETS = ("int32", "int64")
RAGGED = ("ragged_q", "ragged_k", "ragged_v", "ragged_o", "ragged_lse")
"""Operands with the element at which each sequence begins in an array."""
RAGGED_STATS = ("ragged_score_max", "ragged_score_sum_exp")
ROW_NUMBERS = ("ragged_lse", *RAGGED_STATS)
"""Those of arrays with a number for each row."""
RAGGED_GRADIENTS = ("ragged_do", "ragged_dq", "ragged_dk", "ragged_dv")
PAGES = ("page_table_k", "page_table_v")


def sizes_of(values, layout):
    """Values along the dimensions of a layout, in the order batch, heads, rows, elements; packed 0 for the batch."""
    if layout == "BHSD":
        return tuple(values)
    if layout == "BSHD":
        return values[0], values[2], values[1], values[3]
    return 0, values[1], values[0], values[2]


class Layout:
    """Extents and strides of the arrays of a problem, whatever its layout.

    Three layouts are called THD: packed sequences (`cu_seqlens_q`, `cu_seqlens_kv`); ragged ones, of lengths beside the offsets, where an
    array that has no offsets is BSHD; and k and v in pages beside ragged queries.
    """

    @functools.cached_property
    def ragged(self):
        """dtype of the offsets of ragged arrays; "" where none is ragged."""
        return next((t.dtype for t in map(self.offsets, self.ragged_names) if t is not None), "")

    @property
    def ragged_names(self):
        """Operands with offsets that the problem can have."""
        return RAGGED + (RAGGED_STATS if self.is_forward else RAGGED_GRADIENTS)

    def offsets(self, name):
        """The tensor of an operand with offsets, or None; forward there are no pages of gradients, and backward no pages."""
        return getattr(self, name, None)

    @property
    def paged(self):
        """Which of k and v lie in pages."""
        return tuple(getattr(self, name, None) is not None for name in PAGES)

    @property
    def packed(self):
        """Whether sequences lie one after the other."""
        return self.layout == "THD" and not self.ragged

    def layout_of(self, t):
        """That of an array: of four dimensions beside THD it is BSHD."""
        return "BSHD" if self.layout == "THD" and t.ndim == 4 else self.layout

    def sizes(self, t):
        """(batch, heads, rows, elements) of a tensor in this layout; packed the batch is 1 and the rows are those of all sequences; of k
        and v in pages the batch are the pages."""
        images, *others = sizes_of(t.shape, self.layout_of(t))
        return (images if t.ndim == 4 else self.images, *others)

    def strides(self, t):
        """Element strides along batch, heads, rows and elements."""
        return sizes_of(t.strides, self.layout_of(t))

    @property
    def batch(self):
        """Number of sequences."""
        if self.packed:
            cu = self.cu_seqlens_q if self.cu_seqlens_q is not None else self.cu_seqlens_kv
            return cu.shape[0] - 1 if cu is not None and cu.ndim else 0
        if self.ragged:
            return self.seq_len_q.shape[0] if self.seq_len_q is not None and self.seq_len_q.ndim else 0
        return self.q.shape[0]

    @property
    def images(self):
        """Batches of arrays: 1 where sequences are packed."""
        return 1 if self.packed else self.batch

    @property
    def heads(self):
        return sizes_of(self.q.shape, self.layout_of(self.q))[1]

    @property
    def kv_heads(self):
        return sizes_of(self.k.shape, self.layout_of(self.k))[1]

    @property
    def rows(self):
        """Queries of a sequence, packed those of all."""
        if self.offsets("ragged_q") is not None and self.max_seq_len_q:
            return self.max_seq_len_q
        return sizes_of(self.q.shape, self.layout_of(self.q))[2]

    @property
    def keys(self):
        """Keys of a sequence, packed those of all."""
        return self._keys_of("k")

    def _keys_of(self, name):
        t, table = getattr(self, name), getattr(self, f"page_table_{name}", None)
        if (self.offsets(f"ragged_{name}") is not None or table is not None) and self.max_seq_len_kv:
            return self.max_seq_len_kv
        rows = sizes_of(t.shape, self.layout_of(t))[2]
        return rows if table is None else rows * table.shape[1]

    @property
    def d(self):
        return self.q.shape[-1]

    @property
    def dv(self):
        return self.v.shape[-1]

    @property
    def lse_shape(self):
        return (self.heads, self.rows) if self.packed else (self.batch, self.heads, self.rows)

    @property
    def lse_strides(self):
        """Element strides of lse along batch, heads and rows."""
        return self.row_strides(self.lse)

    def row_strides(self, t):
        """Those of an array with a number for each row, or of None."""
        if t is None:
            return 0, 0, 0
        return (0, *t.strides) if t.ndim == 2 else t.strides

    # ---- what must hold

    def _check_memory(self):
        """Offsets and page tables, and the batches and rows that arrays of such layouts have."""
        self._check_offsets()
        for name, paged in zip("kv", self.paged):
            if paged:
                self._check_pages(name)
        if self.paged != (False, False) and self.seq_len_kv is None:
            raise ValueError(f"{self.op}: {' and '.join(n for n, there in zip(PAGES, self.paged) if there)} without seq_len_kv; expected "
                             "how many keys each sequence has")
        for name, of_rows in (("max_seq_len_q", False), ("max_seq_len_kv", self.paged != (False, False))):
            most, ragged = getattr(self, name), [f"ragged_{x}" for x in ("q" if name.endswith("q") else "kv")]
            if isinstance(most, bool) or not isinstance(most, int) or most < 0:
                raise ValueError(f"{self.op}: {name}={most!r}; expected a number of {'queries' if name.endswith('q') else 'keys'}")
            if most and not of_rows and all(self.offsets(x) is None for x in ragged):
                raise ValueError(f"{self.op}: {name}={most} without {' or '.join(ragged)}; expected it beside offsets"
                                 f"{' or pages' if name.endswith('kv') else ''}")

    def _check_offsets(self):
        """Those of each array, and how many rows it has."""
        if not self.ragged:
            return
        if self.layout != "THD":
            raise ValueError(f"{self.op}: ragged offsets with layout {self.layout!r}; expected 'THD'")
        for name in ("seq_len_q", "seq_len_kv"):
            if getattr(self, name) is None:
                raise ValueError(f"{self.op}: ragged offsets without {name}; expected the lengths of the sequences")
        for name in self.ragged_names:
            t, array = self.offsets(name), self.array(name.removeprefix("ragged_"))
            if t is None:
                continue
            if array is None:
                raise ValueError(f"{self.op}: {name} without {name.removeprefix('ragged_')}; expected both")
            if t.dtype not in OFFSETS or t.dtype != self.ragged:
                raise TypeError(f"{self.op}: {name} is {t.dtype}; expected int32 or int64, the same of all offsets")
            if t.shape != (self.batch + 1,):
                raise ValueError(f"{self.op}: {name} has shape {t.shape}; expected {(self.batch + 1,)}")
            if name in ROW_NUMBERS:
                rows, wanted = array.shape[-1], 2
            else:
                rows, wanted = array.shape[0], 3
            if array.ndim != wanted:
                raise ValueError(f"{self.op}: {name.removeprefix('ragged_')} has shape {array.shape} and offsets ({name}); expected "
                                 f"{wanted} dimensions")
            most = self.keys if name[-1] in "kv" else self.rows
            if most > rows:
                raise ValueError(f"{self.op}: max_seq_len_{'kv' if name[-1] in 'kv' else 'q'}={most}, and "
                                 f"{name.removeprefix('ragged_')} has {rows} rows; expected no more than it has")

    def _check_pages(self, name):
        """A page table, and the array that it is of."""
        table, t = getattr(self, f"page_table_{name}"), getattr(self, name)
        if table.dtype != "int32":
            raise TypeError(f"{self.op}: page_table_{name} is {table.dtype}; expected int32")
        if table.ndim != 2 or table.shape[0] != self.batch:
            raise ValueError(f"{self.op}: page_table_{name} has shape {table.shape}; expected (B, pages of a sequence) with B={self.batch}")
        if t.ndim != 4 or self.offsets(f"ragged_{name}") is not None or self.packed:
            raise ValueError(f"{self.op}: {name} has shape {t.shape} and pages; expected four dimensions without offsets: (pages, "
                             f"{'heads, keys of a page' if self.layout == 'BHSD' else 'keys of a page, heads'}, elements)")
        room = table.shape[1] * sizes_of(t.shape, self.layout_of(t))[2] if t.shape[0] else 0
        if self.max_seq_len_kv > room:
            raise ValueError(f"{self.op}: max_seq_len_kv={self.max_seq_len_kv}, and the pages of a sequence have {room} keys of {name}; "
                             "expected no more than they have")

    def array(self, name):
        """The array that launches call so."""
        return getattr(self, "dv_out" if name == "dv" else name)

    def expect_rows(self, name, t, dtypes, heads, rows, elements, label=None):
        """Raise unless an array of rows, if it is there, has one of these dtypes and the shape that the layout gives it."""
        if t is None:
            return
        ragged = self.offsets(f"ragged_{name}") is not None
        if ragged or self.packed:
            shape = (t.shape[0] if ragged and t.ndim else rows, heads, elements)
        else:
            shape = (self.batch, heads, rows, elements) if self.layout == "BHSD" else (self.batch, rows, heads, elements)
        expect(self.op, label or name, t, dtypes, shape)

    def expect_row_numbers(self, label, t, ragged, heads, rows):
        """Raise unless an array with a number for each row, if it is there, has the shape and type that lse has."""
        if t is not None:
            of_heads = (heads, t.shape[-1] if t.ndim else 0) if ragged else self.lse_shape
            expect(self.op, label, t, (self.compute,), of_heads)
