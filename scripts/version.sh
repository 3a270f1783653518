#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Prints the version: it stands in one header.
sed -n 's/^#define RD2H_VERSION_STRING "\(.*\)"$/\1/p' "$(dirname "$0")/../include/rd2h/version.h"
