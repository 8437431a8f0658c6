// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Headers that most tests without torch include, precompiled: see lockstep_add_test_headers.

#include <filesystem>
#include <fstream>
#include <functional>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
