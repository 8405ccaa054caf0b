"""Device properties: what a device is, as text that another process reads."""
import json
from dataclasses import asdict

from ._errors import InvalidValue, cudnnGraphNotSupportedError


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

    def check(self, device):
        """Raise unless a graph that is made for this device may run on that one: plans are made for the device at hand."""
        if self._data["arch"] != device.arch:
            raise cudnnGraphNotSupportedError(f"device_property is of {self._data['arch']}; the device is {device.arch}, and plans for "
                                              "another one are not supported")


def create_device_properties(device) -> DeviceProperties:
    """The properties of a device.

    Parameters
    ----------
    device : int or str
        Its index, or what `DeviceProperties.serialize` returned.
    """
    if isinstance(device, str):
        try:
            data = json.loads(device)
        except ValueError:
            data = None
        if not isinstance(data, dict) or not isinstance(data.get("arch"), str):
            raise InvalidValue(f"create_device_properties: got {device[:40]!r}; expected an index, or what serialize() returned")
        return DeviceProperties(data)
    if isinstance(device, bool) or not isinstance(device, int):
        raise TypeError(f"create_device_properties: got {device!r}; expected an index, or what serialize() returned")
    from ..host.device import device as device_of
    try:
        return DeviceProperties(json.loads(json.dumps(asdict(device_of(device)))))
    except ValueError as error:
        raise InvalidValue(f"create_device_properties: {error}") from None
