// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What most tests that see torch include, precompiled for them: see lockstep_add_test_headers.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
