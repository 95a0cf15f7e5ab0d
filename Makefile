# SPDX-License-Identifier: MIT OR Apache-2.0
.PHONY: run test
run:
	@scripts/run
test:
	@scripts/test
