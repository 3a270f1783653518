/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_BASE_TEXT_H
#define RD2H_BASE_TEXT_H
/* Texts of a peer end up in errors and log lines: control characters become spaces, so that a line stays a line. */
void rd2h_text_one_line(char *s);
#endif
