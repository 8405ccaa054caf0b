"""Device properties: what a device is, as text that another process reads."""
import json
from dataclasses import asdict, fields, replace

from ._errors import InvalidValue, cudnnGraphNotSupportedError

ELSEWHERE = -1  # the index of devices that are not here


class DeviceProperties:
    """What is known of a device; `serialize` gives it as JSON, from which `create_device_properties` makes an equal one."""

    def __init__(self, data):
        self._data = data

    def serialize(self) -> str:
        """As JSON; the same text for the same device."""
        return json.dumps(self._data, sort_keys=True)

    def __eq__(self, other):
        return isinstance(other, DeviceProperties) and self._data == other._data

    def __hash__(self):
        return hash(self.serialize())

    @property
    def device(self):
        """The device, as one that is not here."""
        from ..host.device import Device
        return Device(**{**self._data, "capability": tuple(self._data["capability"]), "index": ELSEWHERE})


def create_device_properties(device) -> DeviceProperties:
    """The properties of a device, for `pygraph`'s `device_property`.

    Parameters
    ----------
    device : int or str
        Its index; or what `DeviceProperties.serialize` returned, of a device that need not be here; or an architecture, "sm_90a", for the
        largest device of that by its data sheet (not in cuDNN).

    Raises
    ------
    RuntimeError
        INVALID_VALUE: no such device, or text that says nothing of one.

    Examples
    --------
    >>> import dnnkern.graph as cudnn
    >>> properties = cudnn.create_device_properties("sm_90a")
    >>> cudnn.create_device_properties(properties.serialize()) == properties
    True
    """
    if isinstance(device, bool) or not isinstance(device, (int, str)):
        raise TypeError(f"create_device_properties: got {device!r}; expected an index, an architecture, or what serialize() returned")
    from ..host.device import described
    from ..host.device import device as device_of
    if isinstance(device, str) and device.lstrip().startswith("{"):
        return DeviceProperties(_parsed(device))
    try:
        found = described(device) if isinstance(device, str) else device_of(device)
    except ValueError as error:
        raise InvalidValue(f"create_device_properties: {error}; or what serialize() returned") from None
    return DeviceProperties(json.loads(json.dumps(asdict(found))))


def _parsed(text):
    """The data of a device; InvalidValue where the text has not all of it."""
    from ..host.device import Device, arch_of
    wrong = InvalidValue(f"create_device_properties: got {text[:40]!r}; expected an index, an architecture, or what serialize() returned")
    kinds = {field.name: {int: (int,), float: (int, float), str: (str,), tuple: (list,)}[field.type] for field in fields(Device)}
    try:
        data = json.loads(text)
    except ValueError:
        raise wrong from None
    if data.keys() != kinds.keys() or not all(type(data[name]) in kind for name, kind in kinds.items()):
        raise wrong
    capability = data["capability"]
    if len(capability) != 2 or not all(isinstance(part, int) for part in capability) or data["arch"] != arch_of(capability):
        raise wrong
    return data


def device_elsewhere(properties, sm_version, here):
    """The device that `pygraph`'s `device_property` and `sm_version` name, where it is of another kind than the one that is `here` (None:
    there is none); else None.

    Raises
    ------
    RuntimeError
        INVALID_VALUE: no device of that version is known, or the two do not name one device.
    cudnnGraphNotSupportedError
        The processor or the simulator, where there is none: kernels are compiled ahead for GPUs alone.
    """
    from ..host.device import arch_of, described
    capability = None if sm_version is None else divmod(sm_version, 10)
    if properties is None:
        if capability is None or here is not None and here.capability == capability:
            return None
        try:
            return replace(described(arch_of(capability)), index=ELSEWHERE)
        except ValueError as error:
            raise InvalidValue(f"pygraph: sm_version is {sm_version}: {error}") from None
    found = properties.device
    if capability not in (None, found.capability):
        raise InvalidValue(f"pygraph: sm_version is {sm_version}, and device_property is of {found.name} ({found.arch}); expected those of "
                           "one device")
    kinds = [None if device is None else (device.is_processor, device.is_simulated) for device in (found, here)]
    if any(kinds[0]) and kinds[0] != kinds[1]:
        raise cudnnGraphNotSupportedError(f"device_property is of {found.name}; the device is {here.name if here else 'none'}, and plans "
                                          "are made ahead for GPUs alone")
    return None if kinds[0] == kinds[1] and (any(kinds[0]) or found.arch == here.arch) else found
