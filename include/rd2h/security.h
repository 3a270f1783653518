/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_SECURITY_H
#define RD2H_SECURITY_H
/* Keys of the control channel (CURVE of ZeroMQ: Curve25519, authenticated encryption). docs/security.md says what they protect. */
#include <rd2h/status.h>
#ifdef __cplusplus
extern "C" {
#endif
#define RD2H_KEY_CHARS 40 /* a key in the form Z85: printable, without blanks, commas and quotes */
/* A new pair of keys. UNSUPPORTED: the installed libzmq has no CURVE. */
RD2H_API int rd2h_keys_new(char public_key[RD2H_KEY_CHARS + 1], char secret_key[RD2H_KEY_CHARS + 1], struct rd2h_error *);
/* The public key of a secret one; INVALID: that is no key. */
RD2H_API int rd2h_keys_public(const char *secret_key, char public_key[RD2H_KEY_CHARS + 1], struct rd2h_error *);
#ifdef __cplusplus
}
#endif
#endif
