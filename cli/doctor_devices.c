/* SPDX-License-Identifier: Apache-2.0 */
#include "doctor.h"
#include <dlfcn.h>
#include <errno.h>
#include <glob.h>
#include <ifaddrs.h>
#include <linux/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define KV_PORT 23000u
#define CONTROL_PORT 29599u

/* ---- network ---- */
static void check_addresses(struct doctor *d) {
  char all[DOCTOR_TEXT] = "", one[64];
  struct ifaddrs *list = NULL;
  getifaddrs(&list);
  for (const struct ifaddrs *i = list; i; i = i->ifa_next) {
    int family = i->ifa_addr ? i->ifa_addr->sa_family : AF_UNSPEC;
    if ((family != AF_INET && family != AF_INET6) || i->ifa_flags & IFF_LOOPBACK || !(i->ifa_flags & IFF_UP))
      continue;
    if (family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)i->ifa_addr)->sin6_addr))
      continue;
    socklen_t len = family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
    size_t n = strlen(all);
    if (!getnameinfo(i->ifa_addr, len, one, sizeof one, NULL, 0, NI_NUMERICHOST))
      snprintf(all + n, sizeof all - n, "%s%s (%s)", n ? ", " : "", one, i->ifa_name);
  }
  if (list)
    freeifaddrs(list);
  if (*all)
    doctor_add(d, "network", "addresses", DOCTOR_OK, "%s", all);
  else
    doctor_advise(doctor_add(d, "network", "addresses", DOCTOR_WARN, "loopback only"),
                  "Prefill and Decode can meet on this host only; start the container with a network (--network host)");
}

/* 0, or why the port cannot be listened at. */
static int try_port(uint16_t port) {
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
  int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1, rc = 0;
  if (s < 0)
    return errno;
  setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (bind(s, (struct sockaddr *)&a, sizeof a) || listen(s, 1))
    rc = errno;
  close(s);
  return rc;
}

static void check_port(struct doctor *d, const char *name, uint16_t port, const char *of) {
  unsigned low = 32768, high = 60999;
  char range[64];
  int why = try_port(port);
  if (doctor_read("/proc/sys/net/ipv4/ip_local_port_range", range, sizeof range))
    sscanf(range, "%u %u", &low, &high);
  if (why)
    doctor_advise(doctor_add(d, "network", name, DOCTOR_WARN, "%u cannot be listened at: %s", port, strerror(why)), "%s", of);
  else if (port >= low && port <= high)
    doctor_advise(doctor_add(d, "network", name, DOCTOR_WARN, "%u is free, but lies among those that outgoing connections take "
                             "(%u to %u)",
                             port, low, high), "sysctl net.ipv4.ip_local_reserved_ports=%u, or choose another", port);
  else
    doctor_add(d, "network", name, DOCTOR_OK, "%u is free, and outgoing connections do not take it (they take %u to %u)", port,
               low, high);
}

void doctor_network(struct doctor *d) {
  check_addresses(d);
  check_port(d, "kv_port", KV_PORT, "end what holds it, or give Decode and Prefill another kv_port; a Decode rank takes kv_port "
             "+ rank");
  check_port(d, "pd-read", CONTROL_PORT, "rd2h pd-read --control-port takes another");
}

/* ---- devices ---- */
static uint32_t count(const char *pattern) {
  glob_t g = {0};
  uint32_t n = glob(pattern, 0, NULL, &g) ? 0 : (uint32_t)g.gl_pathc;
  globfree(&g);
  return n;
}

static bool loads(const char *library) {
  void *lib = dlopen(library, RTLD_LAZY | RTLD_LOCAL);
  if (lib)
    dlclose(lib);
  return lib;
}

static void check_npu(struct doctor *d) {
  uint32_t n = count("/dev/davinci[0-9]*");
  bool library = loads("libascendcl.so");
  if (n && library)
    doctor_add(d, "devices", "Ascend NPU", DOCTOR_OK, "%u, with libascendcl.so", n);
  else if (n)
    doctor_advise(doctor_add(d, "devices", "Ascend NPU", DOCTOR_WARN, "%u, but libascendcl.so does not load", n),
                  "source the set_env.sh of the Ascend toolkit");
  else
    doctor_add(d, "devices", "Ascend NPU", DOCTOR_MISSING, "none (no /dev/davinci*%s): KV lies in host memory here",
               library ? "; libascendcl.so is installed" : "");
}

static void check_gpu(struct doctor *d) {
  uint32_t n = count("/dev/nvidia[0-9]*");
  if (n)
    doctor_add(d, "devices", "NVIDIA GPU", DOCTOR_OK, "%u; no engine of rd2h reads GPU memory yet", n);
  else
    doctor_add(d, "devices", "NVIDIA GPU", DOCTOR_MISSING, "none (no /dev/nvidia*)");
}

static void check_rdma(struct doctor *d) {
  glob_t g = {0};
  char all[DOCTOR_TEXT] = "", state[64];
  bool active = false;
  if (glob("/sys/class/infiniband/*/ports/*/state", 0, NULL, &g))
    g.gl_pathc = 0;
  for (size_t i = 0; i < g.gl_pathc; i++) {
    const char *device = g.gl_pathv[i] + strlen("/sys/class/infiniband/");
    size_t n = strlen(all);
    if (!doctor_read(g.gl_pathv[i], state, sizeof state))
      continue;
    snprintf(all + n, sizeof all - n, "%s%.*s %s", n ? ", " : "", (int)strcspn(device, "/"), device, state);
    active |= strstr(state, "ACTIVE") != NULL;
  }
  globfree(&g);
  if (!*all)
    doctor_add(d, "devices", "RDMA", DOCTOR_MISSING, "none (nothing in /sys/class/infiniband): between hosts, bytes go by TCP");
  else if (!active)
    doctor_advise(doctor_add(d, "devices", "RDMA", DOCTOR_WARN, "%s", all), "no port is active: look at cable, switch and subnet "
                  "manager");
  else if (!count("/dev/infiniband/uverbs*"))
    doctor_advise(doctor_add(d, "devices", "RDMA", DOCTOR_WARN, "%s, but no /dev/infiniband/uverbs*", all),
                  "start the container with --device /dev/infiniband, and load ib_uverbs");
  else
    doctor_add(d, "devices", "RDMA", DOCTOR_OK, "%s", all);
}

void doctor_devices(struct doctor *d) {
  check_npu(d);
  check_gpu(d);
  check_rdma(d);
}
