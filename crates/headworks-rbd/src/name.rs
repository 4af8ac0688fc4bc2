//! Names of images as `rbd` writes them: `POOL/IMAGE`, `POOL/NAMESPACE/IMAGE`, each with `@SNAPSHOT` or without.

use std::fmt;
use std::str::FromStr;

/// The name of an image or of one of its snapshots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageName {
    /// Pool of the image.
    pub pool: String,
    /// Namespace in the pool; empty for the usual one.
    pub namespace: String,
    /// Name in the namespace.
    pub image: String,
    /// Snapshot of the image; none for its head.
    pub snapshot: Option<String>,
}

impl FromStr for ImageName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!("`{text}` is no image; it is POOL/IMAGE, with @SNAPSHOT behind it or without")
        };
        let (path, snapshot) = match text.split_once('@') {
            Some((path, snapshot)) => (path, Some(snapshot)),
            None => (text, None),
        };
        let parts: Vec<&str> = path.split('/').collect();
        let (pool, namespace, image) = match *parts.as_slice() {
            [pool, image] => (pool, "", image),
            [pool, namespace, image] if !namespace.is_empty() => (pool, namespace, image),
            _ => return Err(wrong()),
        };
        let is_bad = |part: &str| part.is_empty() || part.contains(['\0', '@']);
        if is_bad(pool) || is_bad(image) || namespace.contains('\0') || snapshot.is_some_and(is_bad)
        {
            return Err(wrong());
        }
        Ok(Self {
            pool: pool.to_owned(),
            namespace: namespace.to_owned(),
            image: image.to_owned(),
            snapshot: snapshot.map(str::to_owned),
        })
    }
}

impl fmt::Display for ImageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/", self.pool)?;
        if !self.namespace.is_empty() {
            write!(f, "{}/", self.namespace)?;
        }
        f.write_str(&self.image)?;
        self.snapshot.as_ref().map_or(Ok(()), |snapshot| write!(f, "@{snapshot}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_written() {
        for text in ["rbd/vol", "rbd/tenant/vol", "rbd/vol@monday", "a/b/c@d"] {
            assert_eq!(text.parse::<ImageName>().unwrap().to_string(), text);
        }
        let name: ImageName = "pool/space/vol@snap".parse().unwrap();
        assert_eq!((name.namespace.as_str(), name.image.as_str()), ("space", "vol"));
        for text in
            ["", "vol", "/vol", "rbd/", "a//b", "a/b/c/d", "rbd/vol@", "rbd/vol@a@b", "a/\0"]
        {
            assert!(text.parse::<ImageName>().unwrap_err().contains("POOL/IMAGE"), "{text}");
        }
    }
}
