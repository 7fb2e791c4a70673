/* A scripted libnvidia-ml.so.1 for tests: every answer comes from `scenario.txt` beside the library.
 *
 * It never touches a driver.  Structures are declared here from NVML's published API and not taken from
 * the reader's bindings, so that a wrong layout on the reader's side shows as a wrong value.  A function
 * that the scenario does not name answers NOT_SUPPORTED: a test must say what a GPU can do.
 *
 * Scenario, one statement a line, `#` begins a comment, a later statement replaces an earlier one:
 *   <function> = <values...>     answer with these values; `<base> + <n>` grows by n a second of uptime
 *   <function> ! <code>          answer with this nvmlReturn_t
 *   <function> ~ <what>          first: sleep `<n>` ms, hang `forever`, `stop` (SIGSTOP) or `crash` (SIGABRT)
 *   gpu <n>, mig <n>             what follows is about GPU n, or MIG instance n of that GPU
 *   gone                         this GPU answers GPU_IS_LOST to everything, its handle included
 *   sample <type> = <age us>:<value> ...         a ring, in any order; an age of `-` is a time stamp of 0
 *   clock realtime|boottime      which clock stamps the rings
 *   field <id> = u|ull <value>   a field of nvmlDeviceGetFieldValues
 *   proc compute|graphics|mps = <pid> <bytes>|na
 *   procabi broken               *RunningProcesses_v3 writes the 32-byte structure of 535.43 to 535.86
 *   log                          append `<function> <gpu>` of every call to `calls.log` beside the library
 * nvmlInit_v2 stands for every way to initialise; nvmlDeviceGetCount_v2 defaults to the GPUs named.
 *
 * -DOLD_535 leaves out what tells 535.98 on from the broken ABI; -DOLD_470 leaves out what 510 and 535 brought. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7,
       NO_DRIVER = 9, LOST = 15, VERSION = 25 };
enum { GPUS = 32, INSTANCES = 8, PROCESSES = 256 };
typedef int code;
typedef unsigned int u32;
typedef unsigned long long u64;

/* ---------------------------------------------------------------- the scenario */

typedef struct statement {
  char *key, *value, *first;
  code answer;
  struct statement *next;
} statement;

typedef struct { char kind; u32 pid; u64 bytes; } process;

typedef struct device {
  u32 index;
  struct device *parent, *instance[INSTANCES];
  int gone, broken_abi, processes;
  process process[PROCESSES];
  statement *statements;
} device;

static device system_, *gpus[GPUS];
static u32 gpu_count;
static int ready, logging;
static clockid_t ring_clock = CLOCK_REALTIME;

static const char *beside(const char *file) {
  static char path[4096];
  Dl_info me;
  if (!dladdr((void *)beside, &me) || !me.dli_fname) return file;
  const char *slash = strrchr(me.dli_fname, '/');
  snprintf(path, sizeof path, "%.*s%s", slash ? (int)(slash - me.dli_fname + 1) : 0, me.dli_fname, file);
  return path;
}

static u64 micros(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return (u64)t.tv_sec * 1000000 + (u64)t.tv_nsec / 1000;
}

static code answer(const char *function, const device *d, code c) {
  FILE *log = logging ? fopen(beside("calls.log"), "a") : NULL;
  if (log) {
    if (!d || d == &system_) fprintf(log, "%s -\n", function);
    else fprintf(log, "%s %u%s\n", function, d->parent ? d->parent->index : d->index, d->parent ? "/mig" : "");
    fclose(log);
  }
  return c;
}

static statement *find(const device *d, const char *key) {
  statement *s = d->statements;
  while (s && strcmp(s->key, key)) s = s->next;
  return s;
}

static statement *put(device *d, const char *key) {
  statement *s = find(d, key);
  if (!s) {
    s = calloc(1, sizeof *s);
    s->key = strdup(key);
    s->answer = NOT_SUPPORTED;
    s->next = d->statements;
    d->statements = s;
  }
  return s;
}

static device *make(device **slot, u32 index, device *parent) {
  if (!*slot) {
    *slot = calloc(1, sizeof **slot);
    (*slot)->index = index;
    (*slot)->parent = parent;
  }
  return *slot;
}

static u64 number(const char **p) {
  char *end;
  u64 base = strtoull(*p, &end, 0);
  while (*end == ' ') ++end;
  if (*end == '+') base += strtoull(end + 1, &end, 0) * (micros(CLOCK_BOOTTIME) / 1000) / 1000;
  *p = end;
  return base;
}

static void add_process(device *d, const char *kind, const char *value) {
  char bytes[32] = "na";
  process *p = &d->process[d->processes];
  if (d->processes < PROCESSES && sscanf(value, "%u %31s", &p->pid, bytes) >= 1) {
    p->kind = kind[0];
    p->bytes = strcmp(bytes, "na") ? strtoull(bytes, NULL, 0) : ~0ull;
    d->processes++;
  }
}

/* Words that stand alone on a line; 0 where the line is a statement about a function. */
static int directive(char *line, device **about) {
  char word[16];
  u32 n;
  if (sscanf(line, "gpu %u", &n) == 1 && n < GPUS) {
    *about = make(&gpus[n], n, NULL);
    if (n >= gpu_count) gpu_count = n + 1;
  } else if (sscanf(line, "mig %u", &n) == 1 && n < INSTANCES) {
    device *gpu = (*about)->parent ? (*about)->parent : *about;
    *about = make(&gpu->instance[n], n, gpu);
  } else if (sscanf(line, "clock %15s", word) == 1) {
    ring_clock = strcmp(word, "boottime") ? CLOCK_REALTIME : CLOCK_BOOTTIME;
  } else if (!strcmp(line, "gone")) {
    (*about)->gone = 1;
  } else if (!strcmp(line, "procabi broken")) {
    (*about)->broken_abi = 1;
  } else if (!strcmp(line, "log")) {
    logging = 1;
  } else {
    return 0;
  }
  return 1;
}

static void understand(char *line, device **about) {
  char *sign = strpbrk(line, "=!~");
  if (directive(line, about) || !sign || sign == line) return;
  char operator = *sign, *key_end = sign, *value = sign + 1;
  while (key_end > line && key_end[-1] == ' ') --key_end;
  *key_end = 0;
  while (*value == ' ') ++value;
  if (!strncmp(line, "proc ", 5)) {
    add_process(*about, line + 5, value);
    return;
  }
  statement *s = put(*about, line);
  if (operator == '=') {
    s->value = strdup(value);
    s->answer = OK;
  } else if (operator == '!') {
    s->answer = atoi(value);
  } else {
    s->first = strdup(value);
    if (!s->value && s->answer == NOT_SUPPORTED) s->answer = OK;
  }
}

static int read_scenario(void) {
  FILE *f = fopen(beside("scenario.txt"), "r");
  char line[4096];
  device *about = &system_;
  if (!f) return 0;
  while (fgets(line, sizeof line, f)) {
    char *start = line + strspn(line, " \t");
    start[strcspn(start, "#\r\n")] = 0;
    for (char *e = start + strlen(start); e > start && e[-1] == ' ';) *--e = 0;
    if (*start) understand(start, &about);
  }
  fclose(f);
  return 1;
}

/* ---------------------------------------------------------------- answers */

static void before(const statement *s) {
  if (!s->first) return;
  if (!strcmp(s->first, "forever")) for (;;) pause();
  if (!strcmp(s->first, "stop")) raise(SIGSTOP);
  else if (!strcmp(s->first, "crash")) abort();
  else usleep((useconds_t)atol(s->first) * 1000);
}

/* The code to answer with; *value is set where the scenario holds one. */
static code ask(const device *d, const char *key, const char **value) {
  if (!ready) return UNINITIALIZED;
  if (!d) return INVALID;
  if (d->gone || (d->parent && d->parent->gone)) return LOST;
  const statement *s = find(d, key);
  if (!s) return NOT_SUPPORTED;
  before(s);
  if (s->answer == OK && !s->value) return NOT_SUPPORTED;
  *value = s->value;
  return s->answer;
}

static code text(const device *d, const char *function, char *out, u32 room) {
  const char *v;
  code c = ask(d, function, &v);
  if (c == OK && strlen(v) >= room) c = TOO_SMALL;
  if (c == OK) strcpy(out, v);
  return answer(function, d, c);
}

static code numbers(const device *d, const char *function, const char *key, u32 **out, int count) {
  const char *v;
  code c = ask(d, key, &v);
  for (int i = 0; c == OK && i < count; ++i) *out[i] = (u32)number(&v);
  return answer(function, d, c);
}

static code wide(const device *d, const char *function, u64 *out) {
  const char *v;
  code c = ask(d, function, &v);
  if (c == OK) *out = number(&v);
  return answer(function, d, c);
}

#define TEXT(f) API code f(device *d, char *out, u32 room) { return text(d, #f, out, room); }
#define U32(f) API code f(device *d, u32 *out) { u32 *o[] = { out }; return numbers(d, #f, #f, o, 1); }
#define U32X2(f) API code f(device *d, u32 *a, u32 *b) { u32 *o[] = { a, b }; return numbers(d, #f, #f, o, 2); }
#define U64(f) API code f(device *d, u64 *out) { return wide(d, #f, out); }
/* A call with a selector: `f(1)` in the scenario speaks for selector 1. */
#define CHOSEN(f) API code f(device *d, u32 which, u32 *out) { \
    char key[96]; \
    u32 *o[] = { out }; \
    snprintf(key, sizeof key, #f "(%u)", which); \
    return numbers(d, #f, key, o, 1); }

/* ---------------------------------------------------------------- start and system */

static code init(const char *function) {
  code c = OK;
  if (!ready) {
    if (!read_scenario()) return NO_DRIVER;
    const statement *s = find(&system_, "nvmlInit_v2");
    answer(function, NULL, OK);
    if (s) {
      before(s);
      c = s->answer;
    }
    ready = c == OK;
  }
  return c;
}
API code nvmlInit_v2(void) { return init("nvmlInit_v2"); }
API code nvmlInitWithFlags(u32 flags) { (void)flags; return init("nvmlInitWithFlags"); }
API code nvmlShutdown(void) { ready = 0; return answer("nvmlShutdown", NULL, OK); }
API code nvmlSystemGetDriverVersion(char *out, u32 room) {
  return text(&system_, "nvmlSystemGetDriverVersion", out, room);
}

API code nvmlDeviceGetCount_v2(u32 *out) {
  const char *function = "nvmlDeviceGetCount_v2";
  u32 *o[] = { out };
  *out = gpu_count;
  if (find(&system_, function)) return numbers(&system_, function, function, o, 1);
  return answer(function, NULL, ready ? OK : UNINITIALIZED);
}

API code nvmlDeviceGetHandleByIndex_v2(u32 index, device **out) {
  device *d = index < GPUS ? gpus[index] : NULL;
  const char *v;
  code c = d && find(d, "nvmlDeviceGetHandleByIndex_v2") ? ask(d, "nvmlDeviceGetHandleByIndex_v2", &v)
           : !d ? INVALID : d->gone ? LOST : OK;
  *out = d;
  return answer("nvmlDeviceGetHandleByIndex_v2", d, c);
}

/* ---------------------------------------------------------------- identity and load */

TEXT(nvmlDeviceGetUUID)
TEXT(nvmlDeviceGetName)
U32(nvmlDeviceGetMinorNumber)
U32X2(nvmlDeviceGetMigMode)
U32(nvmlDeviceGetPowerUsage)
U32(nvmlDeviceGetEnforcedPowerLimit)
U64(nvmlDeviceGetTotalEnergyConsumption)
CHOSEN(nvmlDeviceGetClockInfo)
CHOSEN(nvmlDeviceGetMaxClockInfo)
CHOSEN(nvmlDeviceGetTemperature)
U64(nvmlDeviceGetCurrentClocksThrottleReasons)
#ifndef OLD_470
U64(nvmlDeviceGetCurrentClocksEventReasons)
#endif

typedef struct { char legacy[16]; u32 domain, bus, device, ids, subsystem; char bus_id[32]; } pci;
API code nvmlDeviceGetPciInfo_v3(device *d, pci *out) {
  const char *v;
  code c = ask(d, "nvmlDeviceGetPciInfo_v3", &v);
  if (c == OK) {
    memset(out, 0, sizeof *out);
    sscanf(v, "%x:%x:%x", &out->domain, &out->bus, &out->device);
    snprintf(out->bus_id, sizeof out->bus_id, "%s", v);
  }
  return answer("nvmlDeviceGetPciInfo_v3", d, c);
}

API code nvmlDeviceGetUtilizationRates(device *d, u32 *gpu_then_memory) {
  u32 *o[] = { gpu_then_memory, gpu_then_memory + 1 };
  return numbers(d, "nvmlDeviceGetUtilizationRates", "nvmlDeviceGetUtilizationRates", o, 2);
}

/* Values: total, used (v1, which counts the reservation) or total, used, reserved (v2). */
typedef struct { u64 total, free, used; } memory_1;
API code nvmlDeviceGetMemoryInfo(device *d, memory_1 *out) {
  const char *v;
  code c = ask(d, "nvmlDeviceGetMemoryInfo", &v);
  if (c == OK) {
    out->total = number(&v);
    out->used = number(&v);
    out->free = out->total - out->used;
  }
  return answer("nvmlDeviceGetMemoryInfo", d, c);
}
#ifndef OLD_470
typedef struct { u32 version; u64 total, reserved, free, used; } memory_2;
API code nvmlDeviceGetMemoryInfo_v2(device *d, memory_2 *out) {
  const char *v;
  code c = ask(d, "nvmlDeviceGetMemoryInfo_v2", &v);
  if (c == OK && out->version != (sizeof *out | 2u << 24)) c = VERSION;
  if (c == OK) {
    out->total = number(&v);
    out->used = number(&v);
    out->reserved = number(&v);
    out->free = out->total - out->used - out->reserved;
  }
  return answer("nvmlDeviceGetMemoryInfo_v2", d, c);
}
#endif

typedef struct { u64 stamp; union { u32 small; u64 wide; double real; } value; } sample;
API code nvmlDeviceGetSamples(device *d, u32 type, u64 newer_than, u32 *value_type, u32 *count, sample *out) {
  char key[32];
  const char *v;
  u32 n = 0, room = *count;
  u64 now = micros(ring_clock);
  snprintf(key, sizeof key, "sample %u", type);
  code c = ask(d, key, &v);
  for (char *end; c == OK && n < room && *v; ++n) {
    u64 age = *v == '-' ? now : strtoull(v, NULL, 10);
    if (!(v = strchr(v, ':'))) break;
    out[n].stamp = now - age;
    out[n].value.wide = 0;
    out[n].value.small = (u32)strtoul(v + 1, &end, 10);
    if (out[n].stamp && out[n].stamp <= newer_than) --n;
    v = end + strspn(end, " ");
  }
  *value_type = 1;
  *count = n;
  return answer("nvmlDeviceGetSamples", d, c == OK && !n ? NOT_FOUND : c);
}

typedef struct { u32 id, scope; long long stamp, latency; u32 type; code result; u64 value; } field;
API code nvmlDeviceGetFieldValues(device *d, int count, field *fields) {
  for (int i = 0; i < count; ++i) {
    char key[32], type[8] = "u";
    const char *v;
    int skip = 0;
    snprintf(key, sizeof key, "field %u", fields[i].id);
    fields[i].result = ask(d, key, &v);
    if (fields[i].result == LOST) return answer("nvmlDeviceGetFieldValues", d, LOST);
    if (fields[i].result != OK) continue;
    sscanf(v, "%7s %n", type, &skip);
    v += skip;
    fields[i].type = strcmp(type, "ull") ? 1 : 3;
    fields[i].value = number(&v);
  }
  return answer("nvmlDeviceGetFieldValues", d, OK);
}

/* ---------------------------------------------------------------- processes */

static code list(device *d, const char *function, char kind, u32 *count, char *out) {
  const char *v;
  u32 n = 0, room = *count;
  size_t size = d && d->broken_abi ? 32 : 24;
  code c = ask(d, function, &v);
  if (c != OK) return answer(function, d, c);
  for (int i = 0; i < d->processes; ++i) {
    if (d->process[i].kind != kind) continue;
    if (++n > room) continue;
    char *entry = out + (n - 1) * size;
    memset(entry, 0, size);
    memcpy(entry, &d->process[i].pid, 4);
    memcpy(entry + 8, &d->process[i].bytes, 8);
    memset(entry + 16, 0xff, 8);
  }
  *count = n;
  return answer(function, d, n > room ? TOO_SMALL : OK);
}
#define LIST(f, kind) API code f(device *d, u32 *n, void *out) { return list(d, #f, kind, n, out); }
LIST(nvmlDeviceGetComputeRunningProcesses_v2, 'c')
LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, 'g')
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, 'm')
/* Only whether the loader finds it matters. */
#define PRESENT(f) API code f(device *d, void *out) { (void)out; return answer(#f, d, NOT_SUPPORTED); }
#ifndef OLD_470
LIST(nvmlDeviceGetComputeRunningProcesses_v3, 'c')
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, 'g')
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, 'm')
PRESENT(nvmlDeviceGetConfComputeMemSizeInfo)
#ifndef OLD_535
PRESENT(nvmlDeviceGetRunningProcessDetailList)
#endif
#endif

/* ---------------------------------------------------------------- MIG */

U32(nvmlDeviceGetMaxMigDeviceCount)
U32(nvmlDeviceGetGpuInstanceId)
U32(nvmlDeviceGetComputeInstanceId)
API code nvmlDeviceGetMigDeviceHandleByIndex(device *d, u32 index, device **out) {
  const char *v;
  code c = d->gone ? LOST : index < INSTANCES && d->instance[index] ? OK : NOT_FOUND;
  if (c == OK && find(d->instance[index], "nvmlDeviceGetMigDeviceHandleByIndex"))
    c = ask(d->instance[index], "nvmlDeviceGetMigDeviceHandleByIndex", &v);
  if (c == OK) *out = d->instance[index];
  return answer("nvmlDeviceGetMigDeviceHandleByIndex", d, c);
}

/* ---------------------------------------------------------------- what a reader must never call */

#define SETTER(f) API code f(device *d, u32 value) { (void)value; return answer(#f, d, OK); }
SETTER(nvmlDeviceSetPersistenceMode)
SETTER(nvmlDeviceSetAccountingMode)
SETTER(nvmlDeviceSetPowerManagementLimit)
