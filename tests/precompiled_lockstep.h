// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Headers that most tests with torch include, precompiled: see lockstep_add_test_headers.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
