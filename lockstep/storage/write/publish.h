// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

namespace lockstep::storage {

/// Renames a finished folder to its final name, and flushes the rename to disk.
///
/// `replace`: removes the folder that has the name, after the new one is in place. Otherwise throws
/// CheckpointError if the name exists. After an error the names are unchanged.
///
/// At every moment one of the two complete folders has the name. If the file system cannot exchange
/// names in one step, there is a moment in which none has it and the old one has a set_aside_name,
/// which remove_stale repairs.
void publish(
    const std::filesystem::path& folder, const std::filesystem::path& target, bool replace);

namespace detail {
/// The fallback of publish without name exchange. Returns the old folder's new name.
std::filesystem::path replace_in_two_steps(
    const std::filesystem::path& folder, const std::filesystem::path& target);
}  // namespace detail

}  // namespace lockstep::storage
