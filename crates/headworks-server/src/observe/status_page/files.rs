//! The files of the status page, and the header fields that confine them.
//!
//! The page loads nothing from other origins and runs nothing but its own files: the policy says so, and there is no inline script,
//! style or handler. The charts are drawn by uPlot, whose file is kept in `web/vendor` as its package has it.

/// A file of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageFile {
    /// Path that requests name.
    pub path: &'static str,
    /// Media type of the text.
    pub media_type: &'static str,
    /// The whole text of the file.
    pub text: &'static str,
}

const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";

/// All files, the page itself first.
pub const PAGE_FILES: [PageFile; 8] = [
    PageFile {
        path: "/",
        media_type: "text/html; charset=utf-8",
        text: include_str!("web/index.html"),
    },
    PageFile { path: "/status.js", media_type: SCRIPT, text: include_str!("web/status.js") },
    PageFile { path: "/charts.js", media_type: SCRIPT, text: include_str!("web/charts.js") },
    PageFile { path: "/format.js", media_type: SCRIPT, text: include_str!("web/format.js") },
    PageFile { path: "/status.css", media_type: STYLE, text: include_str!("web/status.css") },
    PageFile { path: "/icon.svg", media_type: "image/svg+xml", text: include_str!("web/icon.svg") },
    PageFile {
        path: "/vendor/uPlot.iife.min.js",
        media_type: SCRIPT,
        text: include_str!("web/vendor/uPlot.iife.min.js"),
    },
    PageFile {
        path: "/vendor/uPlot.min.css",
        media_type: STYLE,
        text: include_str!("web/vendor/uPlot.min.css"),
    },
];

/// Path of the data.
pub const DATA_PATH: &str = "/status.json";

/// Header fields of every response of the page. Nothing is stored by browsers and proxies, no other site may frame or load it.
pub const FIELDS: &str = "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; \
img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n\
X-Content-Type-Options: nosniff\r\n\
Referrer-Policy: no-referrer\r\n\
Cross-Origin-Resource-Policy: same-origin\r\n\
Cross-Origin-Opener-Policy: same-origin\r\n\
Cache-Control: no-store\r\n";

/// The file at a path.
#[must_use]
pub fn find(path: &str) -> Option<&'static PageFile> {
    PAGE_FILES.iter().find(|file| file.path == path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_names_its_own_files_alone() {
        let page = find("/").unwrap().text;
        let named: Vec<&str> = page
            .split(['"', '\''])
            .filter(|word| word.starts_with('/') && word.len() > 1)
            .collect();
        assert!(named.len() >= 5, "{named:?}");
        for path in named {
            assert!(find(path).is_some() || path == "/metrics", "{path}");
        }
        for file in PAGE_FILES.iter().filter(|file| !file.path.starts_with("/vendor/")) {
            let plain = file.text.replace("http://www.w3.org/2000/svg", "");
            assert!(!plain.contains("http:") && !plain.contains("https:"), "{}", file.path);
        }
    }

    #[test]
    fn page_needs_no_inline_script_style_or_markup_from_data() {
        let page = find("/").unwrap().text;
        let handler = |word: &str| word.starts_with("on") && word.contains('=');
        assert!(!page.contains("style=") && !page.contains("<style"));
        assert!(!page.split_whitespace().any(handler));
        assert_eq!(page.matches("<script").count(), page.matches("<script defer src=").count());
        for file in PAGE_FILES.iter().filter(|file| file.path.ends_with(".js")) {
            let own = !file.path.starts_with("/vendor/");
            for word in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write"] {
                assert!(!own || !file.text.contains(word), "{} has {word}", file.path);
            }
        }
    }

    #[test]
    fn fields_are_whole_lines() {
        assert!(FIELDS.ends_with("\r\n") && FIELDS.lines().all(|line| line.contains(": ")));
        assert!(!FIELDS.contains("unsafe") && FIELDS.contains("default-src 'none'"));
    }
}
