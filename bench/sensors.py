"""What a GPU says of itself while it is measured: its clock, what holds it back, its energy, other processes. Read through NVML, never set.

A row whose run met one of these has a mark, which pages show: times under a power cap, beside another process or at another clock are
not those of the kernel alone.
"""
import contextlib
from collections import defaultdict

CLOCK_MOVED = 0.03  # largest over least clock of the turns, less 1: less is the clock's own step
ENERGY = 83  # NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION, millijoules
REASONS = {"sw_power_cap": "power cap", "hw_power_brake_slowdown": "power cap", "hw_slowdown": "slowed down",
           "sw_thermal_slowdown": "too hot", "hw_thermal_slowdown": "too hot"}


class Sensors:
    """Those of one device.

    Parameters
    ----------
    index : int
        The device, as CUDA counts them: `CUDA_VISIBLE_DEVICES` is not for NVML.
    """

    def __init__(self, index=0):
        from cuda.core import Device, system
        self._device = system.Device(pci_bus_id=Device(index).pci_bus_id)
        self.uuid = self._device.uuid

    def read(self) -> dict:
        """{"sm_mhz": clock of the multiprocessors, "marks": what holds it back}"""
        reasons = {getattr(reason, "value", reason) for reason in self._device.current_clock_event_reasons}
        return {"sm_mhz": self._device.get_clock("sm").get_current_mhz(), "marks": sorted({REASONS[r] for r in reasons & REASONS.keys()})}

    def joules(self) -> float:
        """Energy since the driver was loaded."""
        return 1e-3 * self._device.get_field_values([ENERGY])[0].value

    def processes(self) -> int:
        """How many have a context on the device, this one among them."""
        return len(self._device.compute_running_processes)


class NoSensors:
    """Where NVML is missing, or there is no GPU: nothing is known, and no row is marked."""
    uuid = None

    def read(self):
        return {"sm_mhz": None, "marks": []}

    def joules(self):
        return None

    def processes(self):
        return 1


def of(device):
    """The sensors of a device."""
    if device.is_here and not device.is_processor and not device.is_simulated:
        with contextlib.suppress(Exception):  # a driver without NVML, or a version of it that lacks a reading
            return Sensors(device.index)
    return NoSensors()


class Watch:
    """Reads the sensors after each turn of a race.

    Attributes
    ----------
    clocks : dict
        Of each contender: the clocks at the ends of its turns, MHz.
    """

    def __init__(self, sensors):
        self.sensors, self.clocks, self._marks, self._processes = sensors, defaultdict(list), defaultdict(set), None

    def __call__(self, name):
        found = self.sensors.read()
        if found["sm_mhz"] is not None:
            self.clocks[name].append(found["sm_mhz"])
        self._marks[name].update(found["marks"])

    def span(self, name) -> list:
        """Least and largest clock at the ends of its turns; [] where it is not known."""
        clocks = self.clocks[name]
        return [min(clocks), max(clocks)] if clocks else []

    def marks(self, name) -> list:
        """What is to be said of the times of a contender."""
        found, span = set(self._marks[name]), self.span(name)
        if span and span[1] > (1 + CLOCK_MOVED) * span[0]:
            found.add("clock moved")
        if self._processes is None:
            self._processes = self.sensors.processes()
        if self._processes > 1:
            found.add("other processes")
        return sorted(found)
