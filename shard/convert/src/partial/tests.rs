//! Places of new models.

use super::*;

fn entries(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn job(description: &str) -> Job {
    Job { description: description.to_owned(), can_continue: true }
}

fn open(place: &Path, kind: ResultKind) -> Result<Partial, PlaceError> {
    Partial::open(place, kind, &job("a job"))
}

/// Ends a run as a signal does: nothing is removed, and the lock is gone.
fn kill(partial: Partial) {
    let Partial { folder, .. } = &partial;
    let kept = folder.with_extension("kept");
    fs::rename(folder, &kept).unwrap();
    let folder = folder.clone();
    drop(partial);
    fs::rename(kept, folder).unwrap();
}

#[test]
fn a_folder_appears_when_it_is_complete() {
    let parent = tempfile::tempdir().unwrap();
    for exists in [false, true] {
        let place = parent.path().join(if exists { "empty" } else { "absent" });
        if exists {
            fs::create_dir(&place).unwrap();
        }
        let folder = open(&place, ResultKind::Folder).unwrap();
        folder.write("config.json", b"{}").unwrap();
        assert!(!place.join("config.json").exists());
        folder.complete().unwrap();
        assert_eq!(entries(&place), ["config.json"]);
    }
    assert_eq!(entries(parent.path()), ["absent", "empty"]);
}

#[test]
fn a_result_of_a_run_that_fails_is_removed() {
    let parent = tempfile::tempdir().unwrap();
    let folder = open(&parent.path().join("new"), ResultKind::Folder).unwrap();
    folder.write("config.json", b"{}").unwrap();
    drop(folder);
    assert!(entries(parent.path()).is_empty());
}

#[test]
fn other_folders_and_files_are_left_alone() {
    let parent = tempfile::tempdir().unwrap();
    fs::write(parent.path().join("file"), "text").unwrap();
    for place in [parent.path().to_owned(), parent.path().join("file")] {
        let error = open(&place, ResultKind::Folder).unwrap_err().to_string();
        assert!(
            error.ends_with("exists and is not an empty folder; give the path of a new folder"),
            "{error}"
        );
    }
    let error = open(&parent.path().join("file"), ResultKind::File).unwrap_err().to_string();
    assert!(error.ends_with("file exists; give the path of a new file"), "{error}");
    let error = open(&parent.path().join("absent/new"), ResultKind::Folder).unwrap_err().to_string();
    assert!(error.contains("absent/new: ") && error.contains("No such file"), "{error}");
    // A result that appears meanwhile is not replaced.
    for kind in [ResultKind::Folder, ResultKind::File] {
        let place = parent.path().join("new");
        let partial = open(&place, kind).unwrap();
        match kind {
            ResultKind::Folder => {
                fs::create_dir(&place).unwrap();
                fs::write(place.join("theirs"), "text").unwrap();
            }
            ResultKind::File => {
                fs::write(partial.result(), "mine").unwrap();
                fs::write(&place, "theirs").unwrap();
            }
        }
        assert!(partial.complete().is_err());
        assert_eq!(entries(parent.path()), ["file", "new"]);
        match kind {
            ResultKind::Folder => assert_eq!(entries(&place), ["theirs"]),
            ResultKind::File => assert_eq!(fs::read(&place).unwrap(), b"theirs"),
        }
        remove(&place).unwrap();
    }
    // A folder of the same name that has no job was made by somebody else.
    fs::create_dir(parent.path().join(".new.partial")).unwrap();
    fs::write(parent.path().join(".new.partial/notes"), "text").unwrap();
    let error = open(&parent.path().join("new"), ResultKind::File).unwrap_err().to_string();
    assert!(error.contains(".new.partial is in the way"), "{error}");
    assert_eq!(entries(&parent.path().join(".new.partial")), ["notes"]);
}

#[test]
fn a_full_disk_is_noticed_first() {
    let parent = tempfile::tempdir().unwrap();
    let folder = open(&parent.path().join("new"), ResultKind::Folder).unwrap();
    folder.check_space(1).unwrap();
    if cfg!(target_os = "linux") {
        let error = folder.check_space(usize::MAX).unwrap_err().to_string();
        assert!(error.contains("the new checkpoint takes 16384.00 PiB, but only "), "{error}");
    }
}

#[test]
fn the_same_job_continues_and_another_one_begins_again() {
    let parent = tempfile::tempdir().unwrap();
    let place = parent.path().join("new");
    let mut first = open(&place, ResultKind::File).unwrap();
    assert_eq!(first.done(), 0);
    fs::write(first.result(), "half").unwrap();
    first.record(3).unwrap();
    first.record(5).unwrap();
    // Two processes never write the same file.
    let busy = open(&place, ResultKind::File).unwrap_err().to_string();
    assert!(busy.contains("another process is writing") && busy.contains("new"), "{busy}");
    kill(first);
    assert_eq!(entries(parent.path()), [".new.partial"]);

    let again = open(&place, ResultKind::File).unwrap();
    assert_eq!((again.done(), fs::read(again.result()).unwrap()), (5, b"half".to_vec()));
    kill(again);
    // A line that was being written when the process was killed does not count.
    let journal = parent.path().join(".new.partial/journal");
    fs::write(&journal, "3\n5\n7").unwrap();
    let mut again = open(&place, ResultKind::File).unwrap();
    assert_eq!(again.done(), 5);
    again.start_again().unwrap();
    assert_eq!((again.done(), again.result().exists()), (0, false));
    fs::write(again.result(), "whole").unwrap();
    again.record(1).unwrap();
    kill(again);

    let other = Partial::open(&place, ResultKind::File, &job("another job")).unwrap();
    assert_eq!((other.done(), other.result().exists()), (0, false));
    fs::write(other.result(), "other").unwrap();
    kill(other);
    let never = Job { can_continue: false, ..job("another job") };
    let never = Partial::open(&place, ResultKind::File, &never).unwrap();
    assert_eq!((never.done(), never.result().exists()), (0, false));
    fs::write(never.result(), "done").unwrap();
    never.complete().unwrap();
    assert_eq!(
        (entries(parent.path()), fs::read(&place).unwrap()),
        (vec!["new".to_owned()], b"done".to_vec())
    );
}

/// A process that is killed between giving the result its name and removing its folder.
#[test]
fn what_is_left_beside_a_complete_result_is_removed() {
    let parent = tempfile::tempdir().unwrap();
    let place = parent.path().join("new");
    let partial = open(&place, ResultKind::File).unwrap();
    fs::write(partial.result(), "whole").unwrap();
    fs::rename(partial.result(), &place).unwrap();
    kill(partial);
    assert_eq!(entries(parent.path()), [".new.partial", "new"]);
    assert!(matches!(open(&place, ResultKind::File), Err(PlaceError::FileExists { .. })));
    assert_eq!(entries(parent.path()), ["new"]);
}
