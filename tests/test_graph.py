"""The graph itself: its data, its lifecycle, plans and filters, handles, the wrapper."""
import json
import subprocess
import sys

import numpy as np
import pytest
from graphs import T, array_of, close, draw, execute, like, linear, new_graph, run, values

import dnnkern.graph as cudnn
from dnnkern.device import HOST_MEMORY
from dnnkern.graph._ir import GraphSpec

A = [cudnn.heur_mode.A]


# ---- the module


def test_the_module_imports_neither_numba_nor_torch():
    code = ("import sys, dnnkern.graph as cudnn; cudnn.data_type.HALF; cudnn.create_handle(); "
            "sys.exit(any(m.split('.')[0] in ('numba', 'torch', 'numpy', 'cuda') for m in sys.modules))")
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_versions():
    assert cudnn.backend_version() >= 92200 and cudnn.backend_version_string() == "9.22.0"
    assert all(int(part) >= 0 for part in cudnn.__version__.split("."))
    assert cudnn.get_last_error_string() == ""


def test_public_names():
    for name in cudnn.__all__:
        assert getattr(cudnn, name).__doc__ and name in dir(cudnn)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        cudnn.nothing


@pytest.mark.parametrize("kind, members", [("data_type", 19), ("reduction_mode", 10), ("norm_forward_phase", 3), ("heur_mode", 4),
                                           ("knob_type", 29), ("numerical_note", 10), ("behavior_note", 5), ("tensor_reordering", 4)])
def test_enumerations(kind, members):
    assert len(getattr(cudnn, kind)) == members
    assert hasattr(getattr(cudnn, kind), "NOT_SET") == (kind in ("data_type", "reduction_mode", "norm_forward_phase", "knob_type"))


def test_data_types_of_frameworks():
    torch = pytest.importorskip("torch")
    graph = new_graph()
    x = graph.tensor([2], [1], torch.bfloat16)
    assert x.get_data_type() is T.BFLOAT16 and x.set_data_type(np.float16).get_data_type() is T.HALF
    assert x.set_data_type(np.dtype("int32")).get_data_type() is T.INT32 and x.set_data_type(torch.bool).get_data_type() is T.BOOLEAN
    with pytest.raises(TypeError, match="data type .*complex64"):
        x.set_data_type(np.complex64)


# ---- data


def test_repr_rebuilds_an_equal_graph():
    graph, *_ = linear()
    before = GraphSpec.from_json(repr(graph))
    assert len(before.nodes) == 3 and before.tensors[0].dim == (1, 12, 8)
    graph.validate()
    spec = GraphSpec.from_json(repr(graph))
    assert spec == graph._spec and hash(spec) == hash(graph._spec) and spec.key() == graph.key()
    assert [n["op"] for n in json.loads(repr(graph))["nodes"]] == ["matmul", "bias", "relu"]


def test_data_of_attributes_of_every_kind():
    graph = new_graph()
    x = graph.tensor([4, 6], [6, 1])
    graph.relu(x, upper_clip=float("inf"), negative_slope=0.5).set_output(True)
    graph.validate()
    assert GraphSpec.from_json(repr(graph)) == graph._spec


def test_keys_of_graphs():
    first, second, other = (linear(name=name, n=n)[0] for name, n in (("one", 10), ("two", 10), ("one", 11)))
    assert first.key() == second.key() != other.key()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 99}', "null", '{"format": 1, "context": {}, "nodes": 3, "tensors": {}}'])
def test_what_is_no_graph(text):
    with pytest.raises(ValueError, match="not a graph as JSON"):
        GraphSpec.from_json(text)


def test_setters_chain_and_getters():
    graph = new_graph()
    x = graph.tensor([2, 3], [3, 1], T.HALF, name="x", uid=7)
    chained = (x.set_name("z").set_uid(9).set_dim([4, 5]).set_stride([5, 1]).set_alignment(4).set_is_pass_by_value(False)
               .set_reordering_type(cudnn.tensor_reordering.F16x16).set_vector_count_and_dimension(4, 1).set_is_virtual(True)
               .set_output(True).set_ragged_offset(graph.tensor([3, 1], [1, 1], T.INT32)))
    assert chained is x
    assert (x.get_name(), x.get_uid(), x.get_dim(), x.get_stride(), x.get_alignment()) == ("z", 9, [4, 5], [5, 1], 4)
    assert (x.get_vector_count(), x.get_vector_dimension(), x.get_is_virtual()) == (4, 1, False)
    assert x.get_reordering_type() is cudnn.tensor_reordering.F16x16 and not x.get_is_pass_by_value()
    assert not x.get_has_compile_time_constant() and json.loads(repr(x))["name"] == "z"
    constant = graph.tensor_scalar(2, cudnn.scalar_type.COMPILE_TIME_CONST)
    assert constant.get_has_compile_time_constant() and constant.get_data_type() is T.INT32
    copy = graph.tensor_like(x)
    assert copy is not x and copy.get_dim() == [4, 5] and copy.get_uid() == 0 and copy.get_name() == ""


def test_uids_are_stable_and_unique():
    """Trap 5: given or assigned at build."""
    graph, a, b, bias, y = linear()
    bias.set_uid(2)
    graph.validate()
    uids = [t.get_uid() for t in (a, b, bias, y)]
    graph.validate()
    assert uids == [t.get_uid() for t in (a, b, bias, y)] and len(set(uids)) == 4 and bias.get_uid() == 2
    assert graph.query_tensor_attributes_of_uid(2) is bias


# ---- lifecycle


def test_step_by_step():
    graph, a, b, bias, y = linear()
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    assert cudnn.behavior_note.RUNTIME_COMPILATION in graph.get_behavior_notes()
    graph.check_support()
    graph.build_plans(cudnn.build_plan_policy.ALL)
    x, w, v, expected = values()
    assert graph.get_execution_plan_count() >= 3
    names = [graph.get_plan_name_at_index(i) for i in range(graph.get_execution_plan_count())]
    assert len(set(names)) == len(names) and any("matmul_naive" in name for name in names)
    for index in range(len(names)):
        result = array_of(y)
        execute(graph, {a: x, b: w, bias: v, y: result}, index)
        close(result, expected, factor=16, scale=10)
        assert graph.get_behavior_notes_for_plan_at_index(index)[0] == cudnn.behavior_note.RUNTIME_COMPILATION


def test_build_without_modes_makes_no_plans():
    graph, *_ = linear()
    graph.build()
    with pytest.raises(RuntimeError, match="create_execution_plans first"):
        graph.get_execution_plan_count()
    graph.create_execution_plans(A)
    graph.build_plans()
    assert graph.get_workspace_size() == 0 and graph.get_plan_name_at_index(0).startswith("matmul_"), "one kernel"


def test_build_operation_graph_validates():
    graph, *_ = linear()
    graph.build_operation_graph()
    assert graph.get_engine_count() >= 2


def test_engines_and_knobs():
    graph, a, b, bias, y = linear(40, 36, 24)
    graph.build()
    made = set()
    for engine in range(graph.get_engine_count()):
        knobs = {knob.type: knob.max_value for knob in graph.get_knobs_for_engine(engine)}
        graph.create_execution_plan(engine, knobs)
        graph.build_plan_at_index(engine)
        made.add(graph.get_plan_name_at_index(engine))
        x, w, v, expected = values(40, 36, 24)
        result = array_of(y)
        execute(graph, {a: x, b: w, bias: v, y: result})
        close(result, expected, factor=32, scale=20)
    assert len(made) == graph.get_engine_count() > 1
    with pytest.raises(RuntimeError, match="engine 99"):
        graph.get_knobs_for_engine(99)
    with pytest.raises(cudnn.cudnnGraphNotSupportedError, match="no knob SPLIT_K_BUF"):
        graph.create_execution_plan(0, {cudnn.knob_type.SPLIT_K_BUF: 1})


def test_filters():
    graph, *_ = linear()
    graph.build()
    graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    names = [graph.get_plan_name_at_index(i) for i in range(graph.get_execution_plan_count())]
    graph.deselect_engines([names[0]])
    assert graph.get_plan_name_at_index(0) == next(name for name in names if not name.startswith(names[0]))
    graph.deselect_workspace_greater_than(graph.get_workspace_size())
    graph.select_behavior_notes([cudnn.behavior_note.RUNTIME_COMPILATION])
    graph.deselect_numeric_notes([cudnn.numerical_note.TENSOR_CORE, cudnn.numerical_note.WINOGRAD])
    graph.check_support()
    graph.select_numeric_notes([cudnn.numerical_note.FFT])
    with pytest.raises(cudnn.cudnnGraphNotSupportedError, match="no plan .* passes the filters"):
        graph.check_support()


def test_workspace_is_exact_and_shared():
    """Intermediates that live at different times share memory; a workspace of exactly the size is enough, one byte less is refused."""
    x = draw((1, 64, 64), 1)
    graph = new_graph()
    t = y = like(graph, x)
    expected = x.astype(float)
    for _ in range(6):
        y, expected = graph.softmax(y, 2), np.exp(expected) / np.exp(expected).sum(2, keepdims=True)
    y.set_output(True)
    got, = run(graph, {t: x}, [y])
    close(got, expected, factor=64)
    size = graph.get_workspace_size()
    assert size == graph.get_workspace_size_plan_at_index(0) == 2 * x.nbytes
    if HOST_MEMORY:
        with pytest.raises(RuntimeError, match=f"has {size - 1} bytes; the plan needs {size}"):
            graph.execute({t: x, y: got}, np.empty(size - 1, np.uint8))


def test_handles_and_streams():
    first, second = cudnn.create_handle(), cudnn.create_handle()
    assert first != second and cudnn.get_stream(first) == 0
    cudnn.set_stream(handle=first, stream=5)
    assert cudnn.get_stream(handle=first) == 5 and cudnn.get_stream(second) == 0
    cudnn.destroy_handle(first)
    with pytest.raises(RuntimeError, match="HANDLE_ERROR"):
        cudnn.get_stream(first)
    with pytest.raises(RuntimeError, match="HANDLE_ERROR"):
        cudnn.pygraph(handle=first)


def test_device_properties():
    properties = cudnn.create_device_properties(0)
    text = properties.serialize()
    again = cudnn.create_device_properties(text)
    assert again == properties and again.serialize() == text and hash(again) == hash(properties)
    graph, *_ = linear()
    graph.device_property = again
    graph.build(A)
    data = json.loads(text)
    ahead = cudnn.create_device_properties("sm_80")
    assert cudnn.create_device_properties(ahead.serialize()) == ahead != properties and json.loads(ahead.serialize())["sms"] == 108
    if HOST_MEMORY:  # of the other device without a GPU, which is not here
        other = {**data, "name": "processor" if data["name"] == "simulator" else "simulator", "rate": 1.0 * (data["name"] == "simulator")}
        graph, *_ = linear()
        graph.device_property = cudnn.create_device_properties(json.dumps(other))
        with pytest.raises(cudnn.cudnnGraphNotSupportedError, match=f"device_property is of {other['name']}; the device is "):
            graph.build(A)
    with pytest.raises(TypeError, match="pygraph: device_property is 'sm_90'"):
        cudnn.pygraph(device_property="sm_90")
    changes = {"arch": "sm_20"}, {"sms": "80"}, {"sms": True}, {"capability": [9]}, {"more": 1}
    wrong = [json.dumps({**data, **change}) for change in changes]
    for wrong, error in (*((text, RuntimeError) for text in ("{}", "{", text[:-1], *wrong)), ("sm_90", RuntimeError), (99, RuntimeError),
                         (None, TypeError), (True, TypeError)):
        with pytest.raises(error, match="create_device_properties"):
            cudnn.create_device_properties(wrong)


def test_fast_paths():
    """NVIDIA's torch operators call these with addresses, in the order of the uids."""
    if not HOST_MEMORY:
        pytest.skip("addresses of host memory")
    graph, a, b, bias, y = linear()
    graph.build(A)
    x, w, v, expected = values()
    result, workspace = array_of(y), np.empty(graph.get_workspace_size(), np.uint8)
    arrays = {a.get_uid(): x, b.get_uid(): w, bias.get_uid(): v, y.get_uid(): result}
    graph._prepare_variant_pack_template()
    uids = graph._get_variant_pack_uids_sorted()
    assert uids == sorted(arrays)
    pointers = [arrays[uid].ctypes.data for uid in uids]
    graph._execute_with_ptrs(pointers, workspace.ctypes.data, cudnn.create_handle())
    close(result, expected, factor=16, scale=10)
    result[...] = 0
    table = np.array(pointers, np.uint64)
    graph._execute_with_raw_ptrs(table.ctypes.data, len(table), workspace.ctypes.data, None)
    close(result, expected, factor=16, scale=10)
    with pytest.raises(ValueError, match="got 1 addresses; expected 4"):
        graph._execute_with_ptrs(pointers[:1], workspace.ctypes.data, None)
    with pytest.raises(ValueError, match="null address"):
        graph._execute_with_ptrs([0, *pointers[1:]], workspace.ctypes.data, None)
    unbuilt, *_ = linear()
    for call in (unbuilt._prepare_variant_pack_template, unbuilt._get_variant_pack_uids_sorted):
        with pytest.raises(RuntimeError, match="call create_execution_plans first"):
            call()


def test_overrides_are_refused_not_dropped():
    graph, a, b, bias, y = linear()
    graph.build(A)
    with pytest.raises(RuntimeError, match="INVALID_VALUE: execute: .*takes no override_uids"):
        graph.execute({}, None, override_uids=[1], override_shapes=[[1]], override_strides=[[1]])


# ---- conveniences


def test_graph_jit_and_cache():
    calls = []

    @cudnn.graph_cache(key_fn=lambda n: n, maxsize=2)
    @cudnn.jit(heur_modes=A)
    def negated(n):
        calls.append(n)
        with cudnn.graph(None, io_data_type=T.FLOAT) as (graph, uids):
            x = graph.tensor([n, 2], [2, 1], name="x")
            y = graph.neg(x).set_output(True)
            graph.validate()
            uids += [x.get_uid(), y.get_uid()]
        return graph, uids
    graph, uids = negated(3)
    assert negated(3)[0] is graph and negated(3)[1] is uids and calls == [3] and negated.__wrapped__.__wrapped__.__name__ == "negated"
    x, y = draw((3, 2), 1), np.empty((3, 2), np.float32)
    execute(graph, {uids[0]: x, uids[1]: y})
    np.testing.assert_array_equal(y, -x)
    negated(4), negated(5), negated(3)
    assert calls == [3, 4, 5, 3]


def test_wrapper_on_arrays():
    if not HOST_MEMORY:
        pytest.skip("arrays of the host")
    x, w, v, expected = values()
    with cudnn.Graph(io_data_type=T.FLOAT, intermediate_data_type=T.FLOAT, compute_data_type=T.FLOAT) as g:
        y = g.relu(g.bias(input=g.matmul(A=x, B=w, name="mm"), bias=v, name="add"), name="act")
        y.set_output(True)
    g.set_io_tuples(["mm::A", "mm::B", "add::bias"], ["act::OUT_0"])
    close(g(x, w, v), expected, factor=16, scale=10)
    out = np.empty(expected.shape, np.float32)
    assert g({"mm::A": x, "mm::B": w, "add::bias": v}, {"act::OUT_0": out}) is out
    close(out, expected, factor=16, scale=10)
    with cudnn.Graph(inputs=["first::input"], outputs=["second::Y"], io_data_type=T.FLOAT) as two:
        two.softmax(two.softmax(x, name="first"), axis=1, name="second").set_output(True)
    once, two._workspace = two(x), np.empty(1, np.uint8)  # as of a plan that needs less
    np.testing.assert_array_equal(two(x), once)
    with pytest.raises(ValueError, match="INVALID_TENSOR_NAME: .*'mm::X'.*'mm::A'"):
        g({"mm::X": x})
    with pytest.raises(ValueError, match="got 2 arrays; expected 3"):
        g(x, w)


def test_wrapper_with_one_dict_and_results_that_have_other_names():
    """Without `inputs` and `outputs`: buffers of results are among the inputs, by what `set_name` gave or by port, however written."""
    if not HOST_MEMORY:
        pytest.skip("arrays of the host")
    x, scale, epsilon = draw((6, 24, 1, 1), 1), draw((1, 24, 1, 1), 2), np.full((1, 1, 1, 1), 1e-3, np.float32)
    with cudnn.Graph(io_data_type=T.FLOAT, intermediate_data_type=T.FLOAT, compute_data_type=T.FLOAT) as g:
        y, rstd = g.rmsnorm(cudnn.norm_forward_phase.TRAINING, x, scale, epsilon=epsilon, name="rms")
        y.set_output(True).set_name("result"), rstd.set_output(True)
    given = {"rms::epsilon": epsilon, "rms::input": x, "rms::scale": scale}
    expected = x.astype(float) / np.sqrt((x.astype(float) ** 2).mean(1, keepdims=True) + 1e-3)
    for first, second in (("result", "rms::INV_VARIANCE"), ("rms::Y", "rms::Inv_variance")):
        out, statistic = np.full_like(x, np.nan), np.full((6, 1, 1, 1), np.nan, np.float32)
        got = g({**given, first: out, second: statistic})
        assert got[0] is out and got[1] is statistic
        close(out, expected * scale, factor=16, scale=4)
        close(statistic, 1 / np.sqrt((x.astype(float) ** 2).mean(1, keepdims=True) + 1e-3), factor=16)
    assert g(given)[0] is not out, "what is missing is allocated"
    with pytest.raises(ValueError, match="INVALID_TENSOR_NAME: .*'rms::Z'"):
        g({**given, "rms::Z": out})


def test_in_place_buffers():
    """An output may be the memory of an input that the same step reads; one that a later step still needs is copied first."""
    x, other = draw((4, 37), 1), draw((4, 37), 2)
    graph = new_graph()
    a, b = like(graph, x), like(graph, other)
    y = graph.add(a, b).set_output(True)
    graph.build(A)
    buffer = x.copy()
    execute(graph, {a: buffer, b: other, y: buffer})
    np.testing.assert_array_equal(buffer, x + other)
    graph = new_graph()
    a = like(graph, x)
    y = graph.neg(a).set_output(True)
    z = graph.abs(a).set_output(True)
    graph.build(A)
    second = np.empty_like(x)
    buffer = x.copy()
    execute(graph, {a: buffer, y: buffer, z: second})  # one kernel, which reads an element before it writes both results
    np.testing.assert_array_equal(buffer, -x)
    np.testing.assert_array_equal(second, np.abs(x))
    graph = new_graph()
    a = like(graph, x)
    y = graph.neg(a).set_output(True)
    z = graph.softmax(a).set_output(True)
    graph.build(A)
    with pytest.raises(RuntimeError, match="no workspace|has 0 bytes; the plan needs 768 bytes .768 of them for copies"):
        execute(graph, {a: buffer, y: buffer, z: np.empty_like(x)})


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.uint8])
def test_alignments_are_multiples(dtype):
    """Of an alignment of one or two elements any address that is a multiple of it, each buffer another one; kernels peel by addresses."""
    if not HOST_MEMORY:
        pytest.skip("buffers of the host")
    size, rng = np.dtype(dtype).itemsize, np.random.default_rng(3)
    values = [rng.integers(0, 9, (24, 48)).astype(dtype) for _ in range(2)]
    for step in (1, 2):
        graph = new_graph()
        a, b = (like(graph, x).set_alignment(step * size) for x in values)
        y, z = graph.max(a, b).set_output(True), graph.neg(graph.softmax(b, 1)).set_output(True)
        for t in (y, z):
            t.set_data_type(T.FLOAT if t is z else a.get_data_type()).set_alignment(step * size)
        graph.build(A)
        for places in ((0, 1, 2, 3), (1, 0, 3, 2), (3, 1, 1, 0), (2, 3, 0, 1)):
            pack = {}
            for t, value, place in zip((a, b, y, z), (*values, values[0], values[0].astype(np.float32)), places):
                memory = np.zeros(value.nbytes + 64, np.uint8)
                first = -memory.ctypes.data % 16 + place * step * max(size, value.itemsize)
                pack[t] = memory[first:first + value.nbytes].view(value.dtype)
                pack[t][...] = value.reshape(-1)
            graph.execute(pack, np.empty(graph.get_workspace_size(), np.uint8))
            np.testing.assert_array_equal(pack[y].reshape(24, 48), np.maximum(*values))
            powers = np.exp(values[1].astype(float))
            close(-pack[z].reshape(24, 48), powers / powers.sum(1, keepdims=True), factor=64)


def test_log(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDNN_FRONTEND_LOG_INFO", "1")
    monkeypatch.setenv("CUDNN_FRONTEND_LOG_FILE", str(tmp_path / "log"))
    graph, *_ = linear()
    graph.build()
    line, = (tmp_path / "log").read_text().splitlines()
    nodes = json.loads(line.partition("INFO: ")[2])["nodes"]
    assert [n["tag"] for n in nodes] == ["MATMUL", "POINTWISE_ADD", "POINTWISE_RELU_FWD"]
    graph.build()
    assert (tmp_path / "log").read_text().count("INFO: ") == 2, "lines are appended"
    graph.build_operation_graph()
    assert (tmp_path / "log").read_text().count("INFO: ") == 3


def test_log_streams_and_levels(tmp_path, monkeypatch, capsys):
    graph = new_graph()
    q = graph.tensor([1, 2, 4, 8], [64, 32, 8, 1])
    graph.sdpa(q, q, q, is_inference=True, name="attention")[0].set_output(True)
    monkeypatch.setenv("CUDNN_FRONTEND_LOG_FILE", "stdout")
    for level in (None, "", "0"):
        monkeypatch.delenv("CUDNN_FRONTEND_LOG_INFO", raising=False)
        if level is not None:
            monkeypatch.setenv("CUDNN_FRONTEND_LOG_INFO", level)
        graph.build()
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("CUDNN_FRONTEND_LOG_INFO", "1")
    graph.build()
    monkeypatch.setenv("CUDNN_FRONTEND_LOG_FILE", "stderr")
    graph.build()
    for text in capsys.readouterr():
        node, = json.loads(text.partition("[cudnn_frontend] INFO: ")[2])["nodes"]
        assert (node["tag"], node["name"]) == ("SDPA_FWD", "attention")
    monkeypatch.delenv("CUDNN_FRONTEND_LOG_FILE")
    graph.build()
    assert capsys.readouterr() == ("", "")


def test_a_registered_algorithm_is_chosen():
    from dataclasses import replace

    from dnnkern import dispatch
    naive = next(found for found in dispatch.algorithms("matmul") if found.name == "naive")
    mine = dispatch.register(replace(naive, name="mine", estimate=lambda problem, device, config: 1e-12, bound=None))
    try:
        with dispatch.prefer("mine"):
            graph, a, b, bias, y = linear()
            graph.build(A)
            x, w, v, expected = values()
            result = array_of(y)
            execute(graph, {a: x, b: w, bias: v, y: result})
        assert graph.get_plan_name_at_index(0).startswith("matmul_mine")
        close(result, expected, factor=16, scale=10)
    finally:
        dispatch.unregister(mine)


def test_threads():
    """Several threads execute one graph, each with its own buffers."""
    import threading
    graph, a, b, bias, y = linear()
    graph.build(A)
    x, w, v, expected = values()
    wrong = []

    def work(factor):
        result = array_of(y)
        execute(graph, {a: x * np.float32(factor), b: w, bias: v * np.float32(factor), y: result})
        if np.abs(result - factor * expected).max() > 1e-4 * factor:
            wrong.append(factor)
    threads = [threading.Thread(target=work, args=(k + 1,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
