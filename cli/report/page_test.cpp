// SPDX-License-Identifier: Apache-2.0
#include "cli/report/page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::cli {
namespace {

using OrderedJson = nlohmann::ordered_json;
using ::testing::HasSubstr;
using ::testing::Not;

/// Returns the text of the element with the data.
std::string data_in(const std::string& page) {
  const std::string begin = "<script type=\"application/json\" id=\"data\">";
  const size_t at = page.find(begin) + begin.size();
  return page.substr(at, page.find("</script>", at) - at);
}

TEST(Page, EscapesTheTitle) {
  EXPECT_EQ(html_escaped("<a href='x'>&\"</a>"), "&lt;a href=&#39;x&#39;&gt;&amp;&quot;&lt;/a&gt;");
  EXPECT_THAT(
      make_page("</title><script>", {{"runs", OrderedJson::array()}}),
      HasSubstr("<title>&lt;/title&gt;&lt;script&gt;</title>"));
}

TEST(Page, DataCannotEndItsElementAndReadBackAsTheSame) {
  const OrderedJson data = {
      {"runs",
       {{{"name", "</script><script>alert(1)</script><!--"}, {"note", "ü & \u2028 {{js}}"}}}}};
  const std::string page = make_page("title", data);
  const std::string text = data_in(page);
  EXPECT_THAT(text, Not(HasSubstr("<")));
  EXPECT_THAT(page, Not(HasSubstr("alert(1)</script>")));
  EXPECT_EQ(OrderedJson::parse(text), data);
}

TEST(Page, DataWithInvalidUtf8IsReplaced) {
  EXPECT_EQ(script_json(OrderedJson("a\xff")), "\"a\\ufffd\"");
}

TEST(Page, LoadsNothing) {
  const std::string page = make_page("title", {{"runs", OrderedJson::array()}});
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
  for (const char* load : {"src=", "@import", "url(", "fetch(", "<link", "https:"}) {
    EXPECT_THAT(page, Not(HasSubstr(load)));
  }
}

TEST(Page, HasNoPlaceholderLeft) {
  EXPECT_THAT(make_page("title", {{"runs", OrderedJson::array()}}), Not(HasSubstr("{{")));
}

}  // namespace
}  // namespace lockstep::cli
