/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_WORKER_ENGINE_OPEN_H
#define RD2H_WORKER_ENGINE_OPEN_H
#include "engine/engine.h"
#include <rd2h/layout.h>

/* Opens the engine that `spec` names, "name" or "name,option=value,…", and registers the storage areas with it. */
int rd2h_worker_engine(const char *spec, const struct rd2h_engine_opts *, const struct rd2h_memory *, uint32_t n_memory,
                       rd2h_eng **, struct rd2h_error *);
#endif
