"""What NVIDIA's own binding (nvidia-ml-py) reads of all GPUs, as JSON in the shape of our report.

Written from the binding's documentation alone and never from our own reader, so that what the two agree on does
not rest on one mistake. A refused reading is {"error": <nvmlReturn_t>}; one refused with the card's handle says so.
Names, ids and structures are the binding's. Only reads.
"""

import json
import math
import sys
import time

import pynvml as nvml

# Our name of each field, and the binding's.
FIELDS = [
    ("power_cap_ns", nvml.NVML_FI_DEV_PERF_POLICY_POWER),
    ("thermal_ns", nvml.NVML_FI_DEV_PERF_POLICY_THERMAL),
    ("sync_boost_ns", nvml.NVML_FI_DEV_PERF_POLICY_SYNC_BOOST),
    ("board_limit_ns", nvml.NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT),
    ("low_utilization_ns", nvml.NVML_FI_DEV_PERF_POLICY_LOW_UTILIZATION),
    ("reliability_ns", nvml.NVML_FI_DEV_PERF_POLICY_RELIABILITY),
    ("sw_thermal_ns", nvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN),
    ("hw_thermal_ns", nvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN),
    ("hw_power_brake_ns", nvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN),
    ("pcie_tx_bytes", nvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES),
    ("pcie_rx_bytes", nvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES),
    ("nvlink_tx_kib", (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, 0xFFFFFFFF)),
    ("nvlink_rx_kib", (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, 0xFFFFFFFF)),
    ("ecc_corrected_volatile", nvml.NVML_FI_DEV_ECC_SBE_VOL_TOTAL),
    ("ecc_uncorrected_volatile", nvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL),
    ("ecc_corrected_aggregate", nvml.NVML_FI_DEV_ECC_SBE_AGG_TOTAL),
    ("ecc_uncorrected_aggregate", nvml.NVML_FI_DEV_ECC_DBE_AGG_TOTAL),
    ("retired_single_bit", nvml.NVML_FI_DEV_RETIRED_SBE),
    ("retired_double_bit", nvml.NVML_FI_DEV_RETIRED_DBE),
    ("retired_pending", nvml.NVML_FI_DEV_RETIRED_PENDING),
    ("pcie_replays", nvml.NVML_FI_DEV_PCIE_REPLAY_COUNTER),
    ("remapped_correctable", nvml.NVML_FI_DEV_REMAPPED_COR),
    ("remapped_uncorrectable", nvml.NVML_FI_DEV_REMAPPED_UNC),
    ("remap_pending", nvml.NVML_FI_DEV_REMAPPED_PENDING),
    ("remap_failed", nvml.NVML_FI_DEV_REMAPPED_FAILURE),
    ("recovery_action", nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION),
]
GPM = [
    ("gpm_sm_active", nvml.NVML_GPM_METRIC_SM_UTIL),
    ("gpm_tensor_active", nvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL),
    ("gpm_dram_active", nvml.NVML_GPM_METRIC_DRAM_BW_UTIL),
]
UNION = ["dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal"]


def reading(ask):
    try:
        return {"value": ask()}
    except nvml.NVMLError as refused:
        return {"error": refused.value}


def pci(handle):
    domain, bus, rest = nvml.nvmlDeviceGetPciInfo(handle).busId.split(":")
    return f"{int(domain, 16):04x}:{bus}:{rest}".lower()


def memory(handle):
    held = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    return {"used": held.used, "total": held.total, "excludes_reserved": True}


def peak(handle, ring):
    kind, samples = nvml.nvmlDeviceGetSamples(handle, ring, 0)
    all_of_it = [(s.timeStamp, getattr(s.sampleValue, UNION[kind])) for s in samples]
    kept = [(stamp, value) for stamp, value in all_of_it if stamp > 0 and value <= 100]
    stamps = [stamp for stamp, _ in kept]
    return {"percent": max(value for _, value in kept), "covered_ms": (max(stamps) - min(stamps)) // 1000}


def processes(handle):
    lists = [
        ("compute", nvml.nvmlDeviceGetComputeRunningProcesses),
        ("graphics", nvml.nvmlDeviceGetGraphicsRunningProcesses),
        ("mps", nvml.nvmlDeviceGetMPSComputeRunningProcesses),
    ]
    found = []
    for kind, ask in lists:
        try:
            for process in ask(handle):
                held = process.usedGpuMemory
                held = {"error": nvml.NVML_ERROR_NOT_SUPPORTED} if held is None else {"value": held}
                found.append({"pid": process.pid, "kind": kind, "memory": held})
        except nvml.NVMLError_NotSupported:
            if kind == "compute":
                raise
    return found


def fields(handle):
    try:
        answers = nvml.nvmlDeviceGetFieldValues(handle, [which for _, which in FIELDS])
    except nvml.NVMLError as refused:
        return {name: {"error": refused.value} for name, _ in FIELDS}
    read = {}
    for (name, _), answer in zip(FIELDS, answers):
        if answer.nvmlReturn == nvml.NVML_SUCCESS:
            read[name] = {"value": getattr(answer.value, UNION[answer.valueType])}
        else:
            read[name] = {"error": answer.nvmlReturn}
    return read


def activity(take):
    """Hundredths of a percent between two samples, rounded up; `take` fills one sample."""
    first, second = nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()
    try:
        take(first)
        time.sleep(0.12)
        take(second)
        ask = nvml.c_nvmlGpmMetricsGet_t()
        ask.version, ask.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, len(GPM)
        ask.sample1, ask.sample2 = first, second
        for place, (_, metric) in enumerate(GPM):
            ask.metrics[place].metricId = metric
        nvml.nvmlGpmMetricsGet(ask)
        read = {}
        for (name, _), metric in zip(GPM, ask.metrics):
            refused = metric.nvmlReturn != nvml.NVML_SUCCESS
            read[name] = {"error": metric.nvmlReturn} if refused else {"value": math.ceil(metric.value * 100)}
        return read
    except nvml.NVMLError as refused:
        return {name: {"error": refused.value} for name, _ in GPM}
    finally:
        nvml.nvmlGpmSampleFree(first)
        nvml.nvmlGpmSampleFree(second)


def whole(handle, gpm):
    now = lambda: nvml.nvmlDeviceGetUtilizationRates(handle)
    modes = {nvml.NVML_DEVICE_MIG_DISABLE: "disabled", nvml.NVML_DEVICE_MIG_ENABLE: "enabled"}
    read = {
        "sm_util": reading(lambda: now().gpu),
        "mem_util": reading(lambda: now().memory),
        "sm_peak": reading(lambda: peak(handle, nvml.NVML_GPU_UTILIZATION_SAMPLES)),
        "mem_peak": reading(lambda: peak(handle, nvml.NVML_MEMORY_UTILIZATION_SAMPLES)),
        "memory": reading(lambda: memory(handle)),
        "power": reading(lambda: nvml.nvmlDeviceGetPowerUsage(handle)),
        "power_limit": reading(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle)),
        "energy": reading(lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle)),
        "sm_clock": reading(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
        "sm_clock_max": reading(lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)),
        "temperature": reading(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
        "clocks_event": reading(lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)),
        "mig": reading(lambda: modes[nvml.nvmlDeviceGetMigMode(handle)[0]]),
        "processes": reading(lambda: processes(handle)),
        "fields": fields(handle),
    }
    if gpm == "on":
        read["fields"].update(activity(lambda sample: nvml.nvmlGpmSampleGet(handle, sample)))
    return read


def instances(parent, gpu, gpm):
    for place in range(nvml.nvmlDeviceGetMaxMigDeviceCount(parent)):
        try:
            handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(parent, place)
            gi, ci = nvml.nvmlDeviceGetGpuInstanceId(handle), nvml.nvmlDeviceGetComputeInstanceId(handle)
        except nvml.NVMLError:
            continue
        read = {
            "memory": reading(lambda: memory(handle)),
            "processes": reading(lambda: processes(handle)),
            "mig": {"value": "enabled"},
            "fields": {},
        }
        if gpm != "off":
            busy = activity(lambda sample: nvml.nvmlGpmMigSampleGet(parent, gi, sample))
            read["fields"] = busy
            for name, of in [("sm_util", "gpm_sm_active"), ("mem_util", "gpm_dram_active")]:
                share = busy[of]
                read[name] = {"value": math.ceil(share["value"] / 100)} if "value" in share else share
        identity = {
            "uuid": reading(lambda: nvml.nvmlDeviceGetUUID(handle)),
            "name": reading(lambda: nvml.nvmlDeviceGetName(handle)),
            "kind": {"mig": {"parent": gpu["uuid"]["value"], "gi": gi, "ci": ci}},
        }
        yield {"identity": {**gpu, **identity}, "readings": read}


def report(gpm="off"):
    nvml.nvmlInit()
    units = []
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
        except nvml.NVMLError as refused:
            lost = {"error": refused.value, "at": "handle"}
            names = {name: lost for name in ["uuid", "minor", "pci", "name"]}
            units.append({"identity": {"kind": "gpu", "index": index, **names}, "readings": {"power": lost}})
            continue
        identity = {
            "kind": "gpu",
            "index": index,
            "uuid": reading(lambda: nvml.nvmlDeviceGetUUID(handle)),
            "minor": reading(lambda: nvml.nvmlDeviceGetMinorNumber(handle)),
            "pci": reading(lambda: pci(handle)),
            "name": reading(lambda: nvml.nvmlDeviceGetName(handle)),
        }
        unit = {"identity": identity, "readings": whole(handle, gpm)}
        units.append(unit)
        if unit["readings"]["mig"] == {"value": "enabled"} and "value" in identity["uuid"]:
            units.extend(instances(handle, identity, gpm))
    return {"driver": reading(nvml.nvmlSystemGetDriverVersion), "units": units}


if __name__ == "__main__":
    json.dump(report(sys.argv[1] if len(sys.argv) > 1 else "off"), sys.stdout)
