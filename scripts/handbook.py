# SPDX-License-Identifier: MIT OR Apache-2.0
"""The paragraphs of the Debian Administrator's Handbook as plain text: handbook.py FOLDER OUT.

One paragraph per line, in the order of the pages' file names; no headings, listings or tables.
"""

import glob
import html.parser
import sys


class Paragraphs(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.found, self.text, self.open, self.skipped = [], "", [], 0

    def flush(self):
        line = " ".join(self.text.split())
        self.text = ""
        if line:
            self.found.append(line)

    def handle_starttag(self, tag, attributes):
        if tag in ("pre", "table"):
            self.skipped += 1
        if tag == "div":
            self.flush()
            self.open.append(("class", "para") in attributes)

    def handle_endtag(self, tag):
        if tag in ("pre", "table"):
            self.skipped -= 1
        if tag == "div" and self.open:
            self.flush()
            self.open.pop()

    def handle_data(self, data):
        if self.open and self.open[-1] and not self.skipped:
            self.text += data


folder, out = sys.argv[1:]
lines = []
for page in sorted(glob.glob(folder + "/*.html")):
    parser = Paragraphs()
    with open(page, encoding="utf-8") as source:
        parser.feed(source.read())
    lines += parser.found
with open(out, "w", encoding="utf-8") as target:
    target.write("\n".join(lines) + "\n")
