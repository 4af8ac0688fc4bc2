"""Checks the links of a built site, and takes along the files of the sources that its pages link to.

    book_links.py SITE      at the root of the sources
"""
import os
import shutil
import sys
import urllib.parse
from html.parser import HTMLParser


class Page(HTMLParser):
    """What a page links to, and the places in it that can be linked to."""

    def __init__(self, text):
        super().__init__()
        self.links, self.places = [], {""}
        self.feed(text)

    def handle_starttag(self, _tag, attributes):
        for name, value in attributes:
            if name in ("id", "name"):
                self.places.add(value)
            if name in ("href", "src") and value is not None:
                self.links.append(value)


def main():
    """Prints each dead link; the exit status says whether there are any."""
    site = sys.argv[1]
    found = [os.path.join(at, name) for at, _, names in os.walk(site) for name in names if name.endswith(".html")]
    pages = {}
    for path in found:
        with open(path, encoding="utf-8") as page:
            pages[path] = Page(page.read())
    dead, links = [], 0
    for path, page in sorted(pages.items()):
        for link in page.links:
            target, place = urllib.parse.urldefrag(link)
            if urllib.parse.urlsplit(target).scheme or target.startswith("//"):
                continue
            links += 1
            file = os.path.normpath(os.path.join(os.path.dirname(path), urllib.parse.unquote(target))) if target else path
            source = os.path.relpath(file, site)
            if not os.path.exists(file) and os.path.isfile(source):
                os.makedirs(os.path.dirname(file), exist_ok=True)
                shutil.copy(source, file)
            # A folder of the sources is no page.
            is_there = os.path.exists(file) or os.path.isdir(source)
            is_place = file not in pages or urllib.parse.unquote(place) in pages[file].places
            if not is_there or not is_place:
                dead.append(f"{os.path.relpath(path, site)}: {link}")
    for line in dead:
        print(f"book: dead link: {line}")
    print(f"book: {len(pages)} pages, {links} links, {len(dead)} dead")
    return 1 if dead else 0


sys.exit(main())
