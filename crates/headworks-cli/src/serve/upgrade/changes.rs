//! What `ctl` changed and saved nowhere, in a process that replaces the changed one.
//!
//! The changes come from a process that had dropped its privileges (`--user`), and this one opens images before it drops its own.
//! So with `--user` they may say anything about exports of the own configuration except what is opened, and how.

use headworks_core::ConfigError;
use headworks_server::ExportOptions;
use headworks_server::config::{ConfigFile, ExportSection};

/// Merges the changes into the own configuration.
///
/// # Errors
/// A sentence about an export that this process, which `drops_privileges` later, must not open.
pub(in crate::serve) fn with_changes(
    own: ConfigFile,
    mut changes: ConfigFile,
    drops_privileges: bool,
) -> Result<ConfigFile, ConfigError> {
    let opens_nothing_new = |changed: &ExportSection| {
        let same = own.exports.iter().find(|export| export.name == changed.name);
        changed.is_enabled() == Ok(false)
            || same.is_some_and(|same| what_is_opened(same) == what_is_opened(changed))
    };
    if drops_privileges
        && let Some(export) = changes.exports.iter().find(|export| !opens_nothing_new(export))
    {
        let message = format!(
            "export {} is not configured as it is served, and a server with --user opens images as its configuration says; save it (headworks ctl SOCKET save) or remove it first",
            export.name
        );
        return Err(ConfigError::new("upgrade", message));
    }
    // Nothing but a file says which certificates an export needs, and the present one counts.
    for changed in &mut changes.exports {
        if let Some(same) = own.exports.iter().find(|export| export.name == changed.name) {
            changed.certificates.clone_from(&same.certificates);
        }
    }
    Ok(own.merged(changes))
}

/// Kinds and words of an export, without those that say nothing about its image.
fn what_is_opened(export: &ExportSection) -> Vec<(&str, &str, &[String])> {
    let own = export.settings.iter().filter(|setting| !ExportOptions::is_live(&setting.name));
    let mut all: Vec<_> = own.map(|setting| ("", &*setting.name, setting.value.words())).collect();
    all.sort_unstable();
    for part in &export.parts {
        let words = part.settings.iter().map(|one| (part.kind, &*one.name, one.value.words()));
        let mut words: Vec<_> = words.collect();
        words.sort_unstable();
        all.push((part.kind, "", &[]));
        all.extend(words);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = "[[export]]\nname = 'db'\nread-only = true\nweight = 5\nfile = { path = '/srv/db', size = '1G' }\n";

    fn merged(changes: &str, drops_privileges: bool) -> Result<ConfigFile, String> {
        let (own, changes) = (ConfigFile::parse("own", OWN), ConfigFile::parse("changes", changes));
        with_changes(own.unwrap(), changes.unwrap(), drops_privileges)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn weights_and_removals_are_taken_over_with_and_without_privileges() {
        let values = "weight = 900\nioprio = 'idle'\nbps-write = '5M'\nlatency-target = '5ms'";
        let weight = OWN.replace("weight = 5", values);
        let removed = "[[export]]\nname = 'db'\nenabled = false";
        for drops in [false, true] {
            let config = merged(&weight, drops).unwrap();
            assert_eq!(config.exports[0].get("weight").unwrap().word(), "900");
            let config = merged(removed, drops).unwrap();
            assert_eq!(config.exports[0].is_enabled(), Ok(false));
            assert!(merged("[server.vm]\ndirty_ratio = 7", drops).is_ok());
        }
    }

    #[test]
    fn certificates_are_those_of_the_own_configuration() {
        let own = OWN.to_owned() + "certificates = ['new']\n";
        let changes = OWN.replace("weight = 5", "weight = 7") + "certificates = ['old']\n";
        let parse = |text: &str| ConfigFile::parse("f", text).unwrap();
        let config = with_changes(parse(&own), parse(&changes), true).unwrap();
        assert_eq!(config.exports[0].certificates, ["new"]);
        assert_eq!(config.exports[0].get("weight").unwrap().word(), "7");
    }

    #[test]
    fn privileged_process_opens_nothing_that_its_configuration_does_not_name() {
        let others = [
            "[[export]]\nname = 'x'\nfile = { path = '/etc/shadow' }".to_owned(),
            OWN.replace("/srv/db", "/etc/shadow"),
            OWN.replace("read-only = true\n", ""),
            OWN.replace("size = '1G'", "size = '2G'"),
            OWN.to_owned() + "wrap = [{ delay = { read = '5ms' } }]",
        ];
        for changes in others {
            assert!(merged(&changes, false).is_ok(), "{changes}");
            let error = merged(&changes, true).unwrap_err();
            assert!(error.contains("save it (headworks ctl SOCKET save)"), "{error}");
        }
    }
}
