// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "lockstep/tracking/tracker.h"

/// Encodes TensorBoard's event files: TensorFlow's Event and Summary, TensorBoard's HParams. Each
/// function returns one serialized Event; frame_record() makes a record of the file from it.
/// `wall_time_s` is in seconds since 1970. Pure functions.
namespace lockstep::tracking::tfevents {

/// Frames a TFRecord: length, masked CRC-32C of the length, `payload`, masked CRC-32C of the
/// payload.
std::string frame_record(std::string_view payload);

/// Returns the first event of every file.
std::string file_version(double wall_time_s);

/// Encodes one scalar for each value. TensorBoard's scalars have single precision: 1/3 reads back
/// as 0.33333334, and larger numbers as infinity.
std::string scalars(double wall_time_s, int64_t step, const Values& values);

/// Encodes texts for the Text tab, as Markdown.
std::string text(double wall_time_s, int64_t step, const Texts& texts);

/// Encodes batches of images as PNGs. TensorBoard shows one of a batch, and a slider for the
/// others.
std::string images(double wall_time_s, int64_t step, const ImageBatches& images);

/// Encodes the histograms that have finite numbers.
std::string histograms(double wall_time_s, int64_t step, const Histograms& histograms);

/// Encodes the start of the run, with `hparams` (of flat_config).
std::string session_start(double wall_time_s, const nlohmann::json& hparams);
/// Encodes the columns of the HParams tab: settings and, as `metrics`, names of scalars.
std::string experiment(
    double wall_time_s, const nlohmann::json& hparams, const std::vector<std::string>& metrics);
std::string session_end(double wall_time_s, RunStatus status);

}  // namespace lockstep::tracking::tfevents
