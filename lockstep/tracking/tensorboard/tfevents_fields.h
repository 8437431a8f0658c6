// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

/// The numbers of the protobuf fields in TensorBoard's event files.
namespace lockstep::tracking::tfevents {

// Field numbers of tensorflow/core/{util/event,framework/summary,framework/tensor}.proto.
inline constexpr uint32_t kEventWallTime = 1;
inline constexpr uint32_t kEventStep = 2;
inline constexpr uint32_t kEventFileVersion = 3;
inline constexpr uint32_t kEventSummary = 5;
inline constexpr uint32_t kSummaryValue = 1;
inline constexpr uint32_t kValueTag = 1;
inline constexpr uint32_t kValueSimple = 2;
inline constexpr uint32_t kValueHistogram = 5;
inline constexpr uint32_t kValueTensor = 8;
inline constexpr uint32_t kValueMetadata = 9;
inline constexpr uint32_t kMetadataPluginData = 1;
inline constexpr uint32_t kPluginName = 1;
inline constexpr uint32_t kPluginContent = 2;
inline constexpr uint32_t kTensorDtype = 1;
inline constexpr uint32_t kTensorShape = 2;
inline constexpr uint32_t kTensorStrings = 8;
inline constexpr uint32_t kShapeDim = 2;
inline constexpr uint32_t kDimSize = 1;
inline constexpr int64_t kDtypeString = 7;
inline constexpr uint32_t kHistogramMin = 1;
inline constexpr uint32_t kHistogramMax = 2;
inline constexpr uint32_t kHistogramNum = 3;
inline constexpr uint32_t kHistogramSum = 4;
inline constexpr uint32_t kHistogramSumSquares = 5;
inline constexpr uint32_t kHistogramLimits = 6;
inline constexpr uint32_t kHistogramCounts = 7;

// Field numbers of tensorboard/plugins/hparams/{plugin_data,api}.proto.
inline constexpr uint32_t kHParamsExperiment = 2;
inline constexpr uint32_t kHParamsSessionStart = 3;
inline constexpr uint32_t kHParamsSessionEnd = 4;
inline constexpr uint32_t kExperimentTime = 3;
inline constexpr uint32_t kExperimentHParams = 4;
inline constexpr uint32_t kExperimentMetrics = 5;
inline constexpr uint32_t kHParamName = 1;
inline constexpr uint32_t kHParamType = 4;
inline constexpr uint32_t kMetricName = 1;
inline constexpr uint32_t kMetricNameTag = 2;
inline constexpr uint32_t kStartHParams = 1;
inline constexpr uint32_t kStartTime = 5;
inline constexpr uint32_t kEndStatus = 1;
inline constexpr uint32_t kEndTime = 2;
inline constexpr int64_t kTypeString = 1;
inline constexpr int64_t kTypeBool = 2;
inline constexpr int64_t kTypeNumber = 3;
inline constexpr int64_t kStatusSuccess = 1;
inline constexpr int64_t kStatusFailure = 2;

// Field numbers of google/protobuf/struct.proto, and of a map entry.
inline constexpr uint32_t kStructNumber = 2;
inline constexpr uint32_t kStructString = 3;
inline constexpr uint32_t kStructBool = 4;
inline constexpr uint32_t kMapKey = 1;
inline constexpr uint32_t kMapValue = 2;

}  // namespace lockstep::tracking::tfevents
