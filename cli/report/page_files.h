// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace lockstep::cli {

// The files of the same name, which CMake puts into the program.
extern const char* const kPageHtml;
extern const char* const kPageCss;
extern const char* const kPageChartsJs;
extern const char* const kPageJs;

}  // namespace lockstep::cli
