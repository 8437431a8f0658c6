// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

namespace lockstep::checkpoint {

/// Gives a finished folder its name, and returns when the disk knows it.
///
/// `replace`: what bears the name now is removed, after the new one is safely in place. Without, a
/// taken name is a CheckpointError. On any error the names are what they were before.
///
/// At every moment one of the two, whole, bears the name; where the file system cannot exchange
/// names in one step, there is a moment in which none does and the old one has a set_aside_name,
/// which remove_stale repairs.
void publish(
    const std::filesystem::path& folder, const std::filesystem::path& target, bool replace);

namespace detail {
/// How publish replaces where names cannot be exchanged. Returns the name the old one has now.
std::filesystem::path replace_in_two_steps(
    const std::filesystem::path& folder, const std::filesystem::path& target);
}  // namespace detail

}  // namespace lockstep::checkpoint
