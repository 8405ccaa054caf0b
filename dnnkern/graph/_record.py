"""Plans as plain data, `Plan.record`, which serialized graphs and the find database have."""
from .. import dispatch
from ._errors import UnsupportedGraphFormat, cudnnGraphNotSupportedError
from ._plan import Plan


def plan_of(engines, record) -> Plan:
    """The plan of a graph's engines whose `record` this is; an error of some kind where there is no such plan any more."""
    cut, known = engines.cut_of(record["cut"]), record["steps"]
    if len(known) != len(cut.steps):
        raise UnsupportedGraphFormat(f"deserialize: the plan has {len(known)} steps; the graph has {len(cut.steps)}")
    algorithms = tuple(_algorithm_of(step, one, engines.device) for step, one in zip(cut.steps, known))
    return Plan(cut.spec, cut.steps, cut.temporaries, algorithms, engines.device, int(record["engine"]), engines.kernels,
                cut=cut.number)


def _algorithm_of(step, known, device):
    """The algorithm that the data has for a step, bound to its configuration."""
    if known is None or step.problem.is_empty:
        if known is not None or not step.problem.is_empty:
            raise UnsupportedGraphFormat(f"deserialize: {step.node}: an algorithm for a step without elements, or none for one with some")
        return None
    algorithm = dispatch.named(known["op"], known["algorithm"])
    reason = dispatch.refusal(algorithm, step.problem, device) if known["op"] == step.op else f"solves {known['op']}"
    if reason is not None:
        raise cudnnGraphNotSupportedError(f"deserialize: {step.node}: {algorithm} cannot solve {step.problem}: {reason}")
    if not known["config"]:
        return algorithm
    configs = map(algorithm.bound_to, algorithm.configs(step.problem, device))
    bound = next((b for b in configs if b.config_text == known["config"]), None)
    if bound is None:
        raise cudnnGraphNotSupportedError(f"deserialize: {step.node}: {algorithm} has no configuration {known['config']}")
    return bound
