/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_VERSION_H
#define RD2H_VERSION_H
/* The one place the version stands: build files read it from here. */
#define RD2H_VERSION_MAJOR 0
#define RD2H_VERSION_MINOR 1
#define RD2H_VERSION_PATCH 0
#define RD2H_VERSION_STRING "0.1.0"

/* Marks a function of the public C API; everything else in the library is hidden. */
#if defined(__GNUC__)
#define RD2H_API __attribute__((visibility("default")))
#else
#define RD2H_API
#endif

#ifdef __cplusplus
extern "C" {
#endif
/* The version of the library that is loaded, e.g. "0.1.0": compare with RD2H_VERSION_STRING of the headers. */
RD2H_API const char *rd2h_version(void);
#ifdef __cplusplus
}
#endif
#endif
